# SPDX-License-Identifier: Apache-2.0
"""One observation and one action for all agents of a PettingZoo environment, or a clear refusal.

Equal spaces are taken as they are. Flat observations of unequal length are filled up with zeros,
and smaller numbers of choices with actions that the mask forbids. Nothing else is made to fit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from veldt.environments.spaces import action_offset, action_spec, leaf_readers
from veldt.errors import ConfigurationError
from veldt.types import ACTION_MASK, ActionSpec, ObservationLeaf


class SharedObservation:
    """Reads observations of any agents into the leaves that all have in common."""

    def __init__(self, agents: list[str], of_agents: list[gymnasium.Space]) -> None:
        self._agents, self._spaces = agents, of_agents
        self.is_padded = any(space != of_agents[0] for space in of_agents)
        with_mask = isinstance(of_agents[0], spaces.Dict) and ACTION_MASK in of_agents[0].spaces
        if self.is_padded:
            width = max(_flat_size(agents, of_agents))
            self.leaves: tuple[ObservationLeaf, ...] = (
                ObservationLeaf("observation", (width,), "float32", "vector"),
            )
            return
        self._readers = leaf_readers(of_agents[0], with_mask)
        self.leaves = tuple(reader.leaf for reader in self._readers)
        empty = create_empty_array(of_agents[0], n=1)
        self._nothing = next(iter(iterate(batch_space(of_agents[0], 1), empty)))

    def read(self, seen: list[Any], players: np.ndarray) -> dict[str, np.ndarray]:
        """leaf -> [N, ...] of N observations, each of one player; zeros for None."""
        if self.is_padded:
            return {"observation": self._padded(seen, players)}
        space = self._spaces[0]
        rows = [self._nothing if one is None else one for one in seen]
        try:
            empty: Any = create_empty_array(space, n=len(rows))
            batch = concatenate(space, rows, empty)
        except (ValueError, KeyError, TypeError) as error:
            raise self._unlike_its_space(seen, players) from error
        return {
            reader.leaf.name: np.array(reader.read(batch), dtype=reader.leaf.dtype)
            for reader in self._readers
        }

    def _padded(self, seen: list[Any], players: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(seen), *self.leaves[0].shape), dtype=np.float32)
        for row, (one, player) in enumerate(zip(seen, players, strict=True)):
            if one is None:
                continue
            if np.shape(one) != self._spaces[player].shape:
                raise self._unlike_its_space(seen, players)
            flat = np.asarray(one, dtype=np.float32).reshape(-1)
            rows[row, : len(flat)] = flat
        return rows

    def _unlike_its_space(self, seen: list[Any], players: np.ndarray) -> ConfigurationError:
        for one, player in zip(seen, players, strict=True):
            space = self._spaces[player]
            if one is not None and not space.contains(one):
                shape = np.shape(one) if not isinstance(one, dict) else sorted(one)
                return ConfigurationError(
                    f"the PettingZoo agent '{self._agents[player]}' showed an observation "
                    f"{shape} that is not in its observation space {space}; correct one of the two"
                )
        return ConfigurationError("PettingZoo agents showed observations that cannot be joined")


class SharedAction:
    """One ActionSpec for all agents, and each agent's own way to say an action."""

    def __init__(self, agents: list[str], of_agents: list[gymnasium.Space]) -> None:
        self._spaces = of_agents
        self._offsets = [action_offset(space) for space in of_agents]
        first = of_agents[0]
        if all(space == first for space in of_agents):
            self.spec = action_spec(first)
        elif all(isinstance(space, spaces.Discrete) for space in of_agents):
            most = max(int(getattr(space, "n", 0)) for space in of_agents)
            self.spec = ActionSpec("discrete", sizes=(most,))
        else:
            raise _unequal("action", agents, of_agents, "only Discrete ones are filled up")
        self.mask_size = sum(self.spec.sizes)
        starts = np.cumsum([0, *self.spec.sizes[:-1]]) if self.mask_size else np.zeros(0)
        self.forced = np.zeros(self.mask_size, dtype=bool)
        """Only action 0: the mask of a player who is not to act."""
        self.forced[starts.astype(np.int64)] = True

    def of(self, player: int, action: np.ndarray) -> Any:
        """The action as the environment expects it."""
        offset = self._offsets[player]
        shifted = action if offset is None else action + offset
        if isinstance(self._spaces[player], spaces.Discrete):
            return int(shifted)
        return np.asarray(shifted, dtype=self._spaces[player].dtype)

    def mask(self, player: int, given: Any) -> np.ndarray:
        """bool [A] of a player who is to act; `given` is what the environment said, or None."""
        space = self._spaces[player]
        size = int(space.n) if isinstance(space, spaces.Discrete) else self.mask_size
        mask = np.zeros(self.mask_size, dtype=bool)
        if given is None:
            mask[:size] = True
            return mask
        joined = np.concatenate([np.asarray(part).reshape(-1) for part in _parts(given)])
        if len(joined) != size:
            raise ConfigurationError(
                f"the action mask has {len(joined)} entries but the action space has {size} choices"
            )
        mask[:size] = joined > 0
        if not mask.any():
            mask[:size] = True  # as for other environments: a policy needs something to draw from
        return mask


def _parts(mask: Any) -> tuple[Any, ...]:
    return tuple(mask) if isinstance(mask, tuple | list) else (mask,)


def _flat_size(agents: list[str], of_agents: list[gymnasium.Space]) -> list[int]:
    sizes = []
    for space in of_agents:
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise _unequal("observation", agents, of_agents, "only flat Box ones are filled up")
        sizes.append(space.shape[0])
    return sizes


def _unequal(
    what: str, agents: list[str], of_agents: list[gymnasium.Space], why: str
) -> ConfigurationError:
    other = next(number for number, space in enumerate(of_agents) if space != of_agents[0])
    return ConfigurationError(
        f"the {what} spaces of the PettingZoo agents differ: {agents[0]} has {of_agents[0]}, "
        f"{agents[other]} has {of_agents[other]}; {why}, so make them alike (SuperSuit's pad "
        "wrappers do) or train one kind of agent"
    )
