# SPDX-License-Identifier: Apache-2.0
"""Running statistics, kept as buffers so that they are part of the flat vector of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from veldt.types import ObservationLeaf

# float32 counts integers exactly up to 2^24 = 16.8e6. The cap keeps count + batch below that (for
# batches up to 6.7e6 rows) and makes the statistics a slow moving average from then on.
MAX_COUNT = 1.0e7
EPSILON = 1e-8
CLIP = 10.0
_MOST_IMAGES = 256  # of a batch, for the statistics of its pixels


class RunningMoments(nn.Module):
    """Mean and variance of all valid rows seen, merged batch by batch (Chan et al., 1979)."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], first_variance: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.full(shape, first_variance))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, rows: Tensor, valid: Tensor) -> None:
        """Merge the rows [N, *shape] where `valid` [N]; in float64, since sums cancel.

        Rows whose moments are not finite float32 numbers change nothing."""
        rows = rows[valid].double()
        added = float(rows.shape[0])
        if added == 0.0:
            return
        mean = rows.mean(0)
        variance = (rows - mean).square().mean(0)
        # M2 = M2_a + M2_b + delta^2 n_a n_b / n, divided by n.
        weight = added / (self.count.double() + added)
        delta = mean - self.mean.double()
        merged = torch.lerp(self.variance.double(), variance, weight)
        merged = (merged + delta.square() * weight * (1.0 - weight)).float()
        mean = self.mean + (delta * weight).float()
        if not torch.isfinite(mean + merged).all():
            return
        self.variance.copy_(merged)
        self.mean.copy_(mean)
        self.count.add_(added).clamp_(max=MAX_COUNT)

    def sums(self) -> Tensor:
        """Count, sums and sums of squares, float64 [3, entries]: those of disjoint rows add up."""
        mean, count = self.mean.double().reshape(-1), self.count.double()
        squares = self.variance.double().reshape(-1) + mean.square()
        return torch.stack([torch.ones_like(mean), mean, squares]) * count

    @torch.no_grad()
    def load_sums(self, sums: Tensor) -> None:
        """The moments of rows with these sums; nothing changes while there are no rows."""
        count = sums[0, 0]
        if count == 0:
            return
        mean, squares = (sums[1:] / count).reshape(2, *self.mean.shape)
        self.mean.copy_(mean)
        self.variance.copy_((squares - mean.square()).clamp_(min=0.0))
        self.count.copy_(count.clamp(max=MAX_COUNT))


def moments_of(module: nn.Module) -> list[RunningMoments]:
    """All running statistics of a module, in a fixed order."""
    return [part for part in module.modules() if isinstance(part, RunningMoments)]


def moment_sums(module: nn.Module) -> Tensor:
    """The sums of all running statistics, float64, as one vector on the CPU."""
    parts = [moments.sums().reshape(-1) for moments in moments_of(module)]
    return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.float64)


def load_moment_sums(module: nn.Module, sums: Tensor) -> None:
    """The reverse of `moment_sums`."""
    start = 0
    for moments in moments_of(module):
        size = 3 * moments.mean.numel()
        own = sums[start : start + size].reshape(3, -1).to(moments.mean.device)
        moments.load_sums(own)
        start += size


class ObservationNormalizer(nn.Module):
    """Normalizes leaves to (x - mean) / std, clipped to +-10, entry by entry or pixel by pixel.

    Leaves that are not listed stay as they are.
    """

    def __init__(self, leaves: Sequence[ObservationLeaf]) -> None:
        super().__init__()
        self.leaves = list(leaves)
        self._epsilons = [_least_variance(leaf) for leaf in leaves]
        # Before the first update bytes are divided by 255; all else stays as it is.
        self._moments = [
            RunningMoments(leaf.shape, 255.0**2 if leaf.dtype == "uint8" else 1.0)
            for leaf in leaves
        ]
        self.moments = nn.ModuleList(self._moments)

    def forward(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        normalized = dict(observations)
        parts = zip(self.leaves, self._moments, self._epsilons, strict=True)
        for leaf, moments, epsilon in parts:
            scale = torch.rsqrt(moments.variance + epsilon)
            centred = observations[leaf.name].float() - moments.mean
            normalized[leaf.name] = centred.mul_(scale).clamp_(-CLIP, CLIP)
        return normalized

    def vector_moments(self) -> dict[str, RunningMoments]:
        """Moments of the vector leaves by name."""
        pairs = zip(self.leaves, self._moments, strict=True)
        return {leaf.name: moments for leaf, moments in pairs if leaf.kind == "vector"}

    def update(self, observations: dict[str, Tensor], valid: Tensor) -> None:
        for leaf, moments in zip(self.leaves, self._moments, strict=True):
            rows, counted = observations[leaf.name].reshape(-1, *leaf.shape), valid.reshape(-1)
            if leaf.kind == "image":
                # Odd, so that every column of a batch is sampled, whose width may be a power of 2.
                every = (len(rows) // _MOST_IMAGES) | 1
                rows, counted = rows[::every], counted[::every]
            moments.update(rows, counted)


def _least_variance(leaf: ObservationLeaf) -> float:
    """Bounds the scale of pixels whose variance is near zero."""
    if leaf.kind != "image":
        return EPSILON
    return 1.0 if leaf.dtype == "uint8" else (1.0 / 255.0) ** 2
