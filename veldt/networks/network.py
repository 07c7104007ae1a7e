# SPDX-License-Identifier: Apache-2.0
"""Base of all networks: normalizer, encoder, core, and the calls to act and to learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veldt.networks.distributions import Distribution
from veldt.networks.encoders import make_encoder
from veldt.networks.layers import CORES, Core, State
from veldt.networks.normalizers import ObservationNormalizer, RunningMoments
from veldt.networks.options import NetworkOptions
from veldt.types import ACTION_MASK, EnvironmentSpec, Field

LAST_ACTION = "last_action"
LAST_REWARD = "last_reward"


class Network(nn.Module, ABC):
    """Base of all networks.

    `step` takes one row [B, ...], `unroll` rows [T, B, ...]. Both read only the entries of
    `observations` they know, so a whole batch may be passed.

    Args:
        config: Encoder, sizes, core and normalizations.
        spec: The environment's observations and actions.
    """

    distribution: Distribution | None = None

    def __init__(self, config: NetworkOptions, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        asked = {"vector": config.normalize_observations, "image": config.normalize_images}
        normalized = [leaf for leaf in spec.observation if asked.get(leaf.kind, False)]
        self.normalizer = ObservationNormalizer(normalized) if normalized else None
        self.return_moments = RunningMoments(()) if config.normalize_returns else None
        self.core: Core | None = None
        mask = [ACTION_MASK] if spec.action_mask_size else []
        leaves = [leaf.name for leaf in spec.observation]
        self.input_names = [*leaves, *mask, *self.input_fields()]

    def _build_trunk(
        self,
        action_features: Distribution,
        generator: torch.Generator | None,
        last_layer: bool = True,
    ) -> int:
        """Make encoder and core; the number of features a head reads."""
        self._actions = action_features
        self.encoder = make_encoder(self.config, self.spec, generator, last_layer)
        num_features = self.encoder.num_features
        if self.config.last_action_and_reward:
            num_features += action_features.num_action_features + 1
        if self.config.recurrent != "none":
            size = self.config.recurrent_size
            self.core = CORES[self.config.recurrent](num_features, size, generator)
            num_features = size
        return num_features

    @abstractmethod
    def outputs(self, features: Tensor, observations: dict[str, Tensor]) -> Any:
        """The head: features [N, F] -> a NamedTuple of tensors [N, ...].

        `observations` are those of the environment, before any normaliser."""

    def initial_state(self, batch: int) -> State:
        """Recurrent state of `batch` new episodes; () without a core."""
        return self.core.initial_state(batch) if self.core is not None else ()

    def state_fields(self) -> dict[str, Field]:
        """Per-environment fields of the state, in the order of `initial_state`."""
        if self.core is None:
            return {}
        return {name: Field((self.core.size,), "float32") for name in self.core.state_names}

    def output_fields(self) -> dict[str, Field]:
        """Per-environment fields that an actor stores with each row."""
        return {}

    def input_fields(self) -> dict[str, Field]:
        """Per-environment entries of `observations` beside those of the environment.

        These are the action and reward just before a row; where `first`, any values.
        """
        if not self.config.last_action_and_reward:
            return {}
        action = self.spec.action
        return {
            LAST_ACTION: Field(action.shape, action.field_dtype),
            LAST_REWARD: Field((), "float32"),
        }

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """The environment's form of stored actions."""
        return self.distribution.env_action(action) if self.distribution is not None else action

    def step(
        self, observations: dict[str, Tensor], state: State, first: Tensor
    ) -> tuple[Any, State]:
        """One row [B, ...]; the state is zeroed where `first` before it is used."""
        features = self._features(observations, first)
        if self.core is not None:
            state = self.core.step(features, state, first)
            features = state[0]
        return self.outputs(features, observations), state

    def unroll(
        self, observations: dict[str, Tensor], state: State, first: Tensor
    ) -> tuple[Any, State]:
        """Rows [T, B, ...] from the state before row 0: outputs and states after each row.

        `step` from the state after a row gives the value of that row's final observation.
        """
        rows = first.shape
        folded = {name: observations[name].flatten(0, 1) for name in self.input_names}
        features = self._features(folded, first.flatten())
        states: State = ()
        if self.core is not None:
            states = self.core.unroll(features.unflatten(0, rows), state, first)
            features = states[0].flatten(0, 1)
        outputs = self.outputs(features, folded)
        return type(outputs)(*(entry.unflatten(0, rows) for entry in outputs)), states

    def _features(self, observations: dict[str, Tensor], first: Tensor) -> Tensor:
        features = self.encoder(self.normalized(observations))
        if not self.config.last_action_and_reward:
            return features
        action = self._actions.action_features(observations[LAST_ACTION])
        reward = observations[LAST_REWARD].clamp(-1.0, 1.0).unsqueeze(1)
        past = torch.cat((action, reward), dim=1).masked_fill(first.unsqueeze(1), 0.0)
        return torch.cat((features, past), dim=1)

    def normalized(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        """What encoders read: normalised observations where options ask for it."""
        return observations if self.normalizer is None else self.normalizer(observations)

    def update_statistics(self, observations: dict[str, Tensor], valid: Tensor) -> None:
        """Merge raw observations [..., *leaf] into the normalizer where `valid` [...]."""
        if self.normalizer is not None:
            self.normalizer.update(observations, valid)

    def update_return_statistics(self, discounted_returns: Tensor, valid: Tensor) -> None:
        """Merge running discounted returns [...] where `valid` [...]."""
        if self.return_moments is not None:
            self.return_moments.update(discounted_returns.reshape(-1), valid.reshape(-1))

    def reward_scale(self) -> Tensor:
        """The factor of rewards: 1 / std of the discounted return; 1 before any is known."""
        if self.return_moments is None:
            return torch.ones(())
        variance = self.return_moments.variance
        return torch.where(variance > 1e-12, torch.rsqrt(variance), 1.0)
