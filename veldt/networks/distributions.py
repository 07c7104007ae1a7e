# SPDX-License-Identifier: Apache-2.0
"""Action distributions as stateless functions of a parameter tensor [..., P].

Actors store this tensor as behaviour logits, and learners compute probabilities, entropies and
divergences from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from veldt.types import ActionSpec

# Finite, so that 0 * log 0 stays 0 in entropies, yet far below what Gumbel noise can lift.
MASKED_LOGIT = -1e9
_LOG_2PI = math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_MIN_STD = 1e-3
_UNIT_STD_SHIFT = math.log(math.expm1(1.0 - _MIN_STD))  # std = 1 where the network says 0


class Distribution(ABC):
    """`params` [..., P], actions [..., *shape], everything else [...]."""

    num_params: int
    num_action_features: int

    @abstractmethod
    def sample(self, params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw actions, in NumPy, whose small operations take a third of the time of torch's."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor: ...

    @abstractmethod
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor: ...

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor: ...

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both, sharing what they have in common."""
        return self.log_prob(params, action), self.entropy(params)

    @abstractmethod
    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q)."""

    @abstractmethod
    def action_features(self, action: Tensor) -> Tensor:
        """Stored actions [N, *shape] as network input [N, num_action_features]."""

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment receives for a stored action."""
        return action


def _log_softmax(logits: Tensor) -> Tensor:
    # Choices first, [n, ...]: reductions over a short last axis are 2 to 5 times slower.
    return F.log_softmax(logits.movedim(-1, 0).contiguous(), dim=0)


def _entropy(log_probs: Tensor) -> Tensor:
    """Of log probabilities [n, ...]."""
    return -(log_probs.exp() * log_probs).sum(0)


class Categorical(Distribution):
    """One of `n` choices; the parameters are logits."""

    def __init__(self, n: int) -> None:
        self.num_params = self.num_action_features = n

    def sample(self, params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        # Gumbel-max: argmax(logits - log E) with E ~ Exp(1) is a draw from softmax(logits).
        noise = random.standard_exponential(params.shape)  # float64: in float32 some are 0
        np.log(noise, out=noise)
        np.subtract(params, noise, out=noise)
        return noise.argmax(-1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.argmax(params, dim=-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return _log_softmax(params).gather(0, action.unsqueeze(0)).squeeze(0)

    def entropy(self, params: Tensor) -> Tensor:
        return _entropy(_log_softmax(params))

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = _log_softmax(params)
        return log_probs.gather(0, action.unsqueeze(0)).squeeze(0), _entropy(log_probs)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        log_p, log_q = _log_softmax(p), _log_softmax(q)
        return (log_p.exp() * (log_p - log_q)).sum(0)

    def action_features(self, action: Tensor) -> Tensor:
        return F.one_hot(action, self.num_params).float()


class MultiCategorical(Distribution):
    """Independent choices; the parameters are the logits of all of them, one after the other."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.num_params = self.num_action_features = sum(sizes)
        self._single = Categorical(max(sizes))
        # Row i lists where choice i's logits are; the last column of the padded params fills up.
        self._index = torch.full((len(sizes), max(sizes)), self.num_params)
        start = 0
        for row, size in enumerate(sizes):
            self._index[row, :size] = torch.arange(start, start + size)
            start += size

    def _rows(self, params: Tensor) -> Tensor:
        """Logits as [..., choices, max(sizes)]."""
        return F.pad(params, (0, 1), value=MASKED_LOGIT)[..., self._index.to(params.device)]

    def sample(self, params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        return self._single.sample(self._rows(torch.from_numpy(params)).numpy(), random)

    def mode(self, params: Tensor) -> Tensor:
        return self._single.mode(self._rows(params))

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self._single.log_prob(self._rows(params), action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return self._single.entropy(self._rows(params)).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_prob, entropy = self._single.log_prob_and_entropy(self._rows(params), action)
        return log_prob.sum(-1), entropy.sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return self._single.kl(self._rows(p), self._rows(q)).sum(-1)

    def action_features(self, action: Tensor) -> Tensor:
        padded = self._single.action_features(action)
        used = self._index.to(action.device) < self.num_params
        return padded[:, used]


class Gaussian(Distribution):
    """Independent normals; parameters are means, then raw scales.

    std = 0.001 + softplus(raw + c), so that raw 0 is std 1 and neither end has a flat gradient. The
    environment receives the action clipped to its bounds.
    """

    def __init__(
        self,
        low: tuple[float, ...],
        high: tuple[float, ...],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.d = self.num_action_features = len(low)
        self.num_params = 2 * self.d
        self.shape = (self.d,) if shape is None else shape
        self.low = np.asarray(low, np.float32).reshape(self.shape)
        self.high = np.asarray(high, np.float32).reshape(self.shape)

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, [..., d] each."""
        mean, raw = params.split(self.d, dim=-1)
        return mean, F.softplus(raw + _UNIT_STD_SHIFT) + _MIN_STD

    def _shaped(self, action: Tensor) -> Tensor:
        return action.reshape(*action.shape[:-1], *self.shape) if len(self.shape) != 1 else action

    def _flat(self, action: Tensor) -> Tensor:
        if len(self.shape) == 1:
            return action
        return action.reshape(*action.shape[: action.dim() - len(self.shape)], self.d)

    def sample(self, params: np.ndarray, random: np.random.Generator) -> np.ndarray:
        shape = (*params.shape[:-1], self.d)
        return self.draw(params, random.standard_normal(shape, dtype=np.float32))

    def draw(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The actions for standard normal `noise` [..., d]."""
        action = noise * self._std_in_numpy(params[..., self.d :])
        action += params[..., : self.d]
        return action.reshape(*params.shape[:-1], *self.shape)

    def _std_in_numpy(self, raw: np.ndarray) -> np.ndarray:
        std = np.logaddexp(raw + np.float32(_UNIT_STD_SHIFT), np.float32(0.0))
        std += np.float32(_MIN_STD)
        return std

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(params[..., : self.d])

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, std = self.moments(params)
        z = (self._flat(action) - mean) / std
        return (-0.5 * z * z - std.log()).sum(-1) - 0.5 * self.d * _LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        _, std = self.moments(params)
        return std.log().sum(-1) + 0.5 * self.d * (1.0 + _LOG_2PI)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        (mean_p, std_p), (mean_q, std_q) = self.moments(p), self.moments(q)
        ratio, shift = std_p / std_q, (mean_p - mean_q) / std_q
        return (0.5 * (ratio * ratio + shift * shift - 1.0) - ratio.log()).sum(-1)

    def action_features(self, action: Tensor) -> Tensor:
        return self._flat(action)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return np.clip(action, self.low, self.high)


class TanhGaussian(Gaussian):
    """A normal u squashed by tanh and scaled to the bounds.

    The stored action is u, because a saturated tanh has no inverse. Densities are those of tanh(u)
    in (-1, 1); the scale to the bounds is a constant that cancels in every use.
    """

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(params, action) - _log_tanh_slope(self._flat(action)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy of tanh(u): H(u) + E[log(1 - tanh(u)^2)].

        There is no closed form. 16-point Gauss-Hermite quadrature gives a smooth gradient without
        noise, and an error below 0.01 per dimension up to std 2.
        """
        mean, std = self.moments(params)
        nodes, weights = (part.to(params.device) for part in _QUADRATURE)
        u = mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes
        return super().entropy(params) + (_log_tanh_slope(u) @ weights).sum(-1)

    def action_features(self, action: Tensor) -> Tensor:
        return torch.tanh(self._flat(action))

    def env_action(self, action: np.ndarray) -> np.ndarray:
        return scale_to_bounds(np.tanh(action), self.low, self.high)


def _gauss_hermite(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the mean of a function of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return (
        torch.tensor(nodes, dtype=torch.float32),
        torch.tensor(weights / weights.sum(), dtype=torch.float32),
    )


_QUADRATURE = _gauss_hermite(16)


def _log_tanh_slope(u: Tensor) -> Tensor:
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), exact where 1 - tanh^2 has rounded to 0.
    return 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))


def scale_to_bounds(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[-1, 1] to [low, high]; clipped, because rounding may step over a bound."""
    return np.clip(low + 0.5 * (action + 1.0) * (high - low), low, high).astype(np.float32)


def make_distribution(action: ActionSpec, kind: str) -> Distribution:
    """The distribution of a policy head over `action`; `kind` selects one for Box actions."""
    if action.kind == "discrete":
        return Categorical(action.sizes[0])
    if action.kind == "multi_discrete":
        return MultiCategorical(action.sizes)
    bounded = np.isfinite([*action.low, *action.high]).all()
    if kind == "tanh_gaussian" and not bounded:
        raise ValueError("tanh_gaussian needs finite action bounds; use distribution gaussian")
    family = TanhGaussian if bounded and kind != "gaussian" else Gaussian
    return family(action.low, action.high, action.shape)
