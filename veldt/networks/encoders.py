# SPDX-License-Identifier: Apache-2.0
"""Encoders: observations to features [N, F].

All vector and discrete leaves are joined into one MLP, each image has a convolutional encoder, and
where there are several parts one more layer mixes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veldt.environments.lookup import imported_function
from veldt.networks.layers import MLP, convolution, num_outputs
from veldt.networks.options import NetworkOptions
from veldt.options import ENCODERS
from veldt.resources import multiplies_bfloat16
from veldt.types import EnvironmentSpec, ObservationLeaf

MAX_ONE_HOT = 64
EMBEDDING_SIZE = 32
NATURE_MIN_SIDE = 36
_SMALL_SIDE, _SMALLEST_WITHOUT_BORDER = 16, 5
LARGE_CUDA_BATCH = 128  # below it, casting costs more than faster convolutions save
LARGE_CPU_BATCH = 8  # with 2 a learner gains nothing
_Convolutions = tuple[tuple[int, int, int], ...]
_CONVOLUTIONS: dict[str, tuple[_Convolutions, int, int]] = {
    # (channels, kernel, stride), the fully connected size, and the smallest side of an image
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512, NATURE_MIN_SIDE),
    "small_conv": (((16, 8, 4), (32, 4, 2)), 256, 20),
}


class Encoder(nn.Module):
    """Maps observations {name: [N, ...]} to features [N, num_features]."""

    num_features: int


class FlatEncoder(Encoder):
    """Vectors as they are, discrete leaves one-hot or embedded, all joined into one MLP."""

    def __init__(
        self,
        leaves: list[ObservationLeaf],
        sizes: tuple[int, ...],
        activation: str,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.leaves = leaves
        self.embeddings = nn.ModuleDict()
        for index, leaf in enumerate(leaves):
            if leaf.kind == "discrete" and leaf.categories > MAX_ONE_HOT:
                table = nn.Embedding(leaf.categories, EMBEDDING_SIZE)
                nn.init.normal_(table.weight, generator=generator)
                self.embeddings[str(index)] = table
        num_inputs = sum(_flat_size(leaf) for leaf in leaves)
        self.mlp = MLP(num_inputs, sizes, activation, generator)
        self.num_features = self.mlp.num_features

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        parts = [self._part(i, observations[leaf.name]) for i, leaf in enumerate(self.leaves)]
        return self.mlp(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])

    def _part(self, index: int, value: Tensor) -> Tensor:
        leaf = self.leaves[index]
        if leaf.kind != "discrete":
            return _as_vector(value)
        if str(index) in self.embeddings:
            return self.embeddings[str(index)](value.long()).flatten(1)
        return F.one_hot(value.long(), leaf.categories).float().flatten(1)


def is_faster_in_bfloat16(value: Tensor) -> bool:
    """Whether convolutions of these images are faster in bfloat16."""
    if value.is_cuda:
        return value.shape[0] >= LARGE_CUDA_BATCH
    is_large = min(value.shape[2:]) >= NATURE_MIN_SIDE and value.shape[0] >= LARGE_CPU_BATCH
    return is_large and value.is_cpu and multiplies_bfloat16()


class ImageEncoder(Encoder):
    """Convolutions over one image, then (unless `size` is 0) one fully connected layer.

    Args:
        leaf: The image.
        convolutions: The layers before the fully connected one.
        size: Units of that layer; 0: none.
        activation: Of that layer.
        generator: Draws the weights.
        may_round: Convolve in bfloat16 where that is faster, up to twice.
        is_deep: Residual blocks, which are twice as fast with channels last. Plain convolutions
            then learn up to 50% faster, but act up to 30% slower, and are slower on small grids.
    """

    def __init__(
        self,
        leaf: ObservationLeaf,
        convolutions: nn.Sequential,
        size: int,
        activation: str,
        generator: torch.Generator | None,
        may_round: bool,
        is_deep: bool = False,
    ) -> None:
        super().__init__()
        self.leaf, self.convolutions = leaf, convolutions
        self._may_round, self._is_deep = may_round, is_deep
        self._is_small = min(leaf.shape[1:]) <= _SMALL_SIDE
        self.output = MLP(
            num_outputs(convolutions, leaf.shape), (size,) if size else (), activation, generator
        )
        self.num_features = self.output.num_features

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        image = self._as_floats(observations[self.leaf.name])
        if image.dtype != torch.bfloat16:
            return self.output(self.convolutions(image).flatten(1))
        # Every weight is used once, so the cache, which threads share, gains nothing.
        with torch.autocast(image.device.type, torch.bfloat16, cache_enabled=False):
            features = self.convolutions(image).flatten(1)
            if image.is_cpu:
                return self.output(features).float()
        return self.output(features.float())  # on CUDA this layer uses TF32

    def _as_floats(self, value: Tensor) -> Tensor:
        """Float images, bytes divided by 255, in the faster memory order and type."""
        is_rounded = self._may_round and is_faster_in_bfloat16(value)
        dtype = torch.bfloat16 if is_rounded else torch.float32
        if value.is_cuda:
            channels_last = is_rounded
        else:
            is_learning = torch.is_grad_enabled()
            channels_last = self._is_deep or (is_learning and not self._is_small)
        order = torch.channels_last if channels_last else torch.preserve_format
        image = value.to(dtype, memory_format=order)
        return image.mul_(1.0 / 255.0) if value.dtype == torch.uint8 else image


def plain_convolutions(
    channels: int,
    layers: _Convolutions,
    padding: int,
    activation: str,
    generator: torch.Generator | None,
) -> nn.Sequential:
    """Layers of (channels, kernel, stride), each followed by the activation."""
    result = nn.Sequential()
    for channels_out, kernel, stride in layers:
        result.append(convolution(channels, channels_out, kernel, stride, padding, generator))
        result.append(nn.ELU(inplace=True) if activation == "elu" else nn.ReLU(inplace=True))
        channels = channels_out
    return result


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, 1, 1, generator)
        # Six blocks add up; at full gain the features would start 20 times too large.
        self.second = convolution(channels, channels, 3, 1, 1, generator, gain=0.4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu_(self.first(torch.relu(x))))


def residual_convolutions(channels: int, generator: torch.Generator | None) -> nn.Sequential:
    """IMPALA's deep network: three sections of convolution, max-pooling and two residual blocks."""
    sections = nn.Sequential()
    for channels_out in (16, 32, 32):
        sections.append(convolution(channels, channels_out, 3, 1, 1, generator))
        sections.append(nn.MaxPool2d(3, stride=2, padding=1))
        sections.append(ResidualBlock(channels_out, generator))
        sections.append(ResidualBlock(channels_out, generator))
        channels = channels_out
    sections.append(nn.ReLU(inplace=True))
    return sections


class JoinedEncoder(Encoder):
    """Several encoders side by side and one layer that mixes them, because heads are linear."""

    def __init__(
        self, parts: list[Encoder], activation: str, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        sizes = [part.num_features for part in parts]
        self.mix = MLP(sum(sizes), (max(sizes),), activation, generator)
        self.num_features = self.mix.num_features

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return self.mix(torch.cat([part(observations) for part in self.parts], dim=1))


class OwnEncoder(Encoder):
    """A user's module. It receives the tensor itself when there is one leaf, else the dict."""

    def __init__(self, factory: Callable[..., Any], spec: EnvironmentSpec) -> None:
        super().__init__()
        self.leaves = spec.observation
        sample = two_observations(spec)
        function = getattr(factory, "func", factory)
        what = f"the network {function.__module__}:{getattr(function, '__qualname__', '')}"
        try:
            self.module = factory(spec)
            if not isinstance(self.module, nn.Module):
                raise TypeError(f"it must return an nn.Module, not {type(self.module)}")
            with torch.no_grad():
                features = self(sample)
            if not isinstance(features, Tensor):
                raise TypeError(f"its module must return a tensor, not {type(features)}")
        except Exception as error:  # one line that names the user's code
            text = " ".join(str(error).split())
            shapes = [
                f"{name} {str(entry.dtype).removeprefix('torch.')}{list(entry.shape)}"
                for name, entry in sample.items()
            ]
            inputs = ("a dict of " if len(shapes) > 1 else "") + ", ".join(shapes)
            raise ValueError(
                f"{what} fails with {type(error).__name__}: {text}; for 2 observations its module"
                f" receives {inputs}"
            ) from error
        if features.dim() != 2 or features.shape[0] != 2:
            raise ValueError(
                f"{what}: its module must map observations [N, ...] to features [N, F]; "
                f"for N = 2 it returned shape {tuple(features.shape)}"
            )
        self.num_features = int(features.shape[1])

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        inputs = {
            leaf.name: observations[leaf.name].float()
            if leaf.kind == "vector"
            else observations[leaf.name]
            for leaf in self.leaves
        }
        return self.module(inputs if len(inputs) > 1 else inputs[self.leaves[0].name])


def is_ready_made(encoder: str | Callable[..., Any]) -> bool:
    """Whether it is one of Veldt's encoders."""
    return not callable(encoder) and encoder in ENCODERS


def make_encoder(
    config: NetworkOptions,
    spec: EnvironmentSpec,
    generator: torch.Generator | None,
    last_layer: bool = True,
) -> Encoder:
    """The encoder of a network.

    Without `last_layer` the head brings its own last hidden layer (dueling streams, a critic that
    reads the action there).
    """
    if not is_ready_made(config.encoder):
        return OwnEncoder(_factory(config.encoder), spec)
    images = [leaf for leaf in spec.observation if _is_image(leaf, config.encoder)]
    flat = [leaf for leaf in spec.observation if leaf not in images]
    if not images and config.encoder not in ("auto", "mlp"):
        raise ValueError(
            f"network '{config.encoder}' needs an image, and {spec.id} has none; use mlp or auto"
        )
    parts: list[Encoder] = [_image_encoder(config, leaf, last_layer, generator) for leaf in images]
    if flat:
        sizes = config.hidden_sizes if last_layer else config.hidden_sizes[:-1]
        parts.append(FlatEncoder(flat, sizes, config.activation, generator))
    joined = parts[0] if len(parts) == 1 else JoinedEncoder(parts, config.activation, generator)
    if config.layer_norm:
        add_layer_norms(joined)
    return joined


def add_layer_norms(encoder: Encoder) -> None:
    """Normalize the outputs of plain convolutions and of layers, each row by itself."""
    for part in list(encoder.modules()):
        if isinstance(part, MLP):
            part.norms.extend(nn.LayerNorm(layer.out_features) for layer in part.layers)
        elif isinstance(part, ImageEncoder):
            normalized = nn.Sequential()
            for layer in part.convolutions:
                normalized.append(layer)
                if isinstance(layer, nn.Conv2d):
                    normalized.append(nn.GroupNorm(1, layer.out_channels))
            part.convolutions = normalized


def last_layer(config: NetworkOptions, spec: EnvironmentSpec) -> tuple[int, str]:
    """Width and activation of the layer that `make_encoder(..., last_layer=False)` leaves out."""
    sees_images = any(_is_image(leaf, config.encoder) for leaf in spec.observation)
    if is_ready_made(config.encoder) and sees_images:
        return 512, "relu" if config.encoder == "resnet" else config.image_activation
    return config.hidden_sizes[-1], config.activation


def _image_encoder(
    config: NetworkOptions,
    leaf: ObservationLeaf,
    last_layer: bool,
    generator: torch.Generator | None,
) -> Encoder:
    name, activation, side = str(config.encoder), config.image_activation, min(leaf.shape[1:])
    may_round, padding = config.image_precision == "auto", 0
    if name == "resnet":
        layers, size = residual_convolutions(leaf.shape[0], generator), 256 if last_layer else 0
        return ImageEncoder(leaf, layers, size, "relu", generator, may_round, is_deep=True)
    if name == "auto" and side <= _SMALL_SIDE:
        convolutions: _Convolutions = ((16, 3, 1),)
        size = 128  # as in MinAtar's own network
        # That has no border: padding would make the next layer, the most expensive, half as large
        # again.
        is_bare = leaf.dtype == "bool" and side >= _SMALLEST_WITHOUT_BORDER
        padding = 0 if is_bare else 1
    elif name == "auto" and side < NATURE_MIN_SIDE:
        convolutions, size, padding = ((16, 3, 2), (32, 3, 2)), 128, 1
    else:
        kind = "nature" if name == "auto" else name
        convolutions, size, smallest = _CONVOLUTIONS[kind]
        if side < smallest:
            raise ValueError(
                f"network '{kind}' needs images of {smallest}x{smallest} or more, and {leaf.name}"
                f" has shape {leaf.shape}; use auto"
            )
    layers = plain_convolutions(leaf.shape[0], convolutions, padding, activation, generator)
    size = size if last_layer else 0
    return ImageEncoder(leaf, layers, size, activation, generator, may_round)


def _is_image(leaf: ObservationLeaf, encoder: str | Callable[..., Any]) -> bool:
    if encoder == "mlp" or leaf.kind == "discrete":
        return False
    # auto cannot know the axes of float arrays [C, H, W]: they are images only on request.
    return leaf.kind == "image" or (encoder != "auto" and len(leaf.shape) == 3)


def _factory(encoder: str | Callable[..., Any]) -> Callable[..., Any]:
    return imported_function(encoder, "network") if isinstance(encoder, str) else encoder


def _as_vector(value: Tensor) -> Tensor:
    value = value.float().mul_(1.0 / 255.0) if value.dtype == torch.uint8 else value.float()
    return value if value.dim() == 2 else value.reshape(value.shape[0], -1)


def _flat_size(leaf: ObservationLeaf) -> int:
    count = int(torch.Size(leaf.shape).numel())
    if leaf.kind != "discrete":
        return count
    return count * (leaf.categories if leaf.categories <= MAX_ONE_HOT else EMBEDDING_SIZE)


def two_observations(spec: EnvironmentSpec) -> dict[str, Tensor]:
    """Zeros of each leaf, to try a network with."""
    found = {}
    for leaf in spec.observation:
        dtype = torch.float32 if leaf.kind == "vector" else getattr(torch, leaf.dtype)
        found[leaf.name] = torch.zeros((2, *leaf.shape), dtype=dtype)
    return found
