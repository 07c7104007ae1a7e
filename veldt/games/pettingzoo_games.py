# SPDX-License-Identifier: Apache-2.0
"""PettingZoo environments, parallel and AEC, with the interface of the native games.

Players are numbered by `possible_agents`. One observation and one action fit all agents: equal
spaces are used as they are, flat observations of unequal length are padded with zeros, and smaller
numbers of choices with masked actions. Other differences are refused.
"""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from veldt.environments.spaces import action_offset, action_spec, joined_mask, leaf_readers
from veldt.errors import ConfigurationError, did_you_mean, extra_module
from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.types import ACTION_MASK, ActionSpec, ObservationLeaf

PREFIX = "pettingzoo:"


class PettingZooGames(VectorGame):
    """Copies of a PettingZoo environment, stepped one after the other in this process."""

    def __init__(
        self,
        make: Callable[[], Any],
        num_games: int,
        seed: int = 0,
        same_step_reset: bool = False,
        id: str = "pettingzoo",
    ) -> None:
        self.num_games = num_games
        self._copies = [_copy(make()) for _ in range(num_games)]
        agents, env = self._copies[0].agents, self._copies[0].env
        self._observation = SharedObservation(agents, [env.observation_space(a) for a in agents])
        self._action = SharedAction(agents, [env.action_space(a) for a in agents])
        self._seeds: list[int | None] = [*range(seed, seed + num_games)]
        self.waiting_for_reset = np.zeros(num_games, dtype=bool)
        self.spec = GameSpec(
            id=id,
            num_players=len(agents),
            observation=self._observation.leaves,
            action=self._action.spec,
            action_mask_size=self._action.mask_size,
            simultaneous=isinstance(self._copies[0], ParallelCopy),
            same_step_reset=same_step_reset,
        )

    @property
    def agents(self) -> list[str]:
        """The name of each player."""
        return self._copies[0].agents

    @property
    def to_act(self) -> np.ndarray:
        return np.stack([copy.to_act for copy in self._copies]) & ~self.waiting_for_reset[:, None]

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._seeds = [*range(seed, seed + self.num_games)]
        for game in range(self.num_games):
            self._begin(game)

    def begin(self, games: np.ndarray) -> None:
        for game in np.flatnonzero(games & self.waiting_for_reset).tolist():
            self._begin(game)

    def observe(
        self, players: np.ndarray, games: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        pairs = self._pairs(players, games)
        seen = [self._copies[game].observation(player) for game, player in pairs]
        return self._observation.read(seen, players)

    def legal(self, players: np.ndarray, games: np.ndarray | None = None) -> np.ndarray:
        legal, to_act = np.tile(self._action.forced, (len(players), 1)), self.to_act
        if self._action.mask_size:
            for row, (game, player) in enumerate(self._pairs(players, games)):
                if to_act[game, player]:
                    given = self._copies[game].mask(player)
                    legal[row] = self._action.mask(player, given)
        return legal

    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        if games is None:
            games = np.ones(self.num_games, dtype=bool)
        acted = self.to_act & games[:, None]
        step = GameStep(
            rewards=np.zeros(acted.shape, dtype=np.float32),
            terminated=np.zeros_like(acted),
            truncated=np.zeros_like(acted),
            over=np.zeros(self.num_games, dtype=bool),
            acted=acted,
        )
        for game in np.flatnonzero(games).tolist():
            if self.waiting_for_reset[game]:
                self._begin(game)
            else:
                self._play(game, actions[game], step)
        self.waiting_for_reset |= step.over
        if self.spec.same_step_reset and step.over.any():
            step.final_observations = self.observe_all()
            self.begin(step.over)
        return step

    def close(self) -> None:
        for copy in self._copies:
            copy.env.close()

    def _pairs(self, players: np.ndarray, games: np.ndarray | None) -> list[tuple[int, int]]:
        numbers = range(self.num_games) if games is None else games.tolist()
        return list(zip(numbers, players.tolist(), strict=True))

    def _begin(self, game: int) -> None:
        self._copies[game].reset(self._seeds[game])
        self._seeds[game] = None
        self.waiting_for_reset[game] = False

    def _play(self, game: int, actions: np.ndarray, step: GameStep) -> None:
        copy = self._copies[game]
        chosen: list[Any] = [None] * len(copy.agents)
        for player in np.flatnonzero(step.acted[game]):
            chosen[player] = self._action.of(int(player), actions[player])
        copy.step(chosen)
        step.rewards[game] = copy.rewards
        step.terminated[game], step.truncated[game] = copy.terminated, copy.truncated
        step.over[game] = copy.over


class Copy(ABC):
    """One game and the result of its last step; arrays have one entry per player."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        count = len(self.agents)
        self.to_act = np.zeros(count, dtype=bool)
        self.rewards = np.zeros(count, dtype=np.float32)
        self.terminated = np.zeros(count, dtype=bool)
        self.truncated = np.zeros(count, dtype=bool)
        self._seen: dict[str, Any] = {}
        self._numbers = {agent: number for number, agent in enumerate(self.agents)}

    @property
    def over(self) -> bool:
        return not self.to_act.any()

    def reset(self, seed: int | None) -> None:
        """Begin a new game; the first one uses the seed, later ones continue its random stream."""
        self._seen = {}
        self._forget_step()
        self._begin(seed)
        if self.over:
            raise ConfigurationError(
                f"the PettingZoo environment {self.env} has no agent to act after its reset"
            )

    def step(self, actions: list[Any]) -> None:
        """Play the actions of the players who are to act; other entries are ignored."""
        self._forget_step()
        self._play(actions)

    def observation(self, player: int) -> Any:
        """The newest observation of a player; None if it had none in this game."""
        return self._seen.get(self.agents[player])

    @abstractmethod
    def mask(self, player: int) -> Any:
        """The player's action mask; None where there is none."""

    @abstractmethod
    def _begin(self, seed: int | None) -> None: ...

    @abstractmethod
    def _play(self, actions: list[Any]) -> None: ...

    def _forget_step(self) -> None:
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0

    def _add_rewards(self, rewards: dict[str, Any]) -> None:
        for agent, reward in rewards.items():
            self.rewards[self._number(agent)] += float(reward)

    def _number(self, agent: str) -> int:
        if agent not in self._numbers:
            raise ConfigurationError(
                f"the PettingZoo agent '{agent}' joined a game but is not among its "
                f"possible_agents {', '.join(self.agents)}; name all of them there"
            )
        return self._numbers[agent]

    def _mask_of(self, agent: str, info: dict[str, Any]) -> Any:
        seen = self._seen.get(agent)
        if isinstance(seen, dict) and ACTION_MASK in seen:
            return seen[ACTION_MASK]
        return info.get(ACTION_MASK)


class ParallelCopy(Copy):
    """A parallel environment: all present agents act in each step."""

    _infos: dict[str, Any]

    def _begin(self, seed: int | None) -> None:
        seen, self._infos = self.env.reset(seed=seed)
        self._seen.update(seen)
        self._set_to_act()

    def _play(self, actions: list[Any]) -> None:
        chosen = {agent: actions[self._number(agent)] for agent in self.env.agents}
        seen, rewards, terminated, truncated, self._infos = self.env.step(chosen)
        self._seen.update(seen)
        self._add_rewards(rewards)
        for flags, ends in ((self.terminated, terminated), (self.truncated, truncated)):
            for agent, ended in ends.items():
                flags[self._number(agent)] = bool(ended) and self.to_act[self._number(agent)]
        was_to_act = self.to_act.copy()
        self._set_to_act()
        # Some environments remove an agent without a flag; its column must end nevertheless.
        silent = was_to_act & ~self.to_act & ~self.terminated & ~self.truncated
        self.truncated |= silent

    def mask(self, player: int) -> Any:
        agent = self.agents[player]
        return self._mask_of(agent, self._infos.get(agent) or {})

    def _set_to_act(self) -> None:
        self.to_act[:] = False
        for agent in self.env.agents:
            self.to_act[self._number(agent)] = True
        self.to_act &= ~(self.terminated | self.truncated)


class SequentialCopy(Copy):
    """An AEC environment: agents act one after the other; ended ones are removed on their turn."""

    def _begin(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._ended = np.zeros(len(self.agents), dtype=bool)
        self._select()

    def _play(self, actions: list[Any]) -> None:
        self.env.step(actions[self._number(self.env.agent_selection)])
        self._after_step()
        self._select()

    def observation(self, player: int) -> Any:
        agent = self.agents[player]
        if agent in self.env.agents and not self._ended[player]:
            self._seen[agent] = self.env.observe(agent)
        return self._seen.get(agent)

    def mask(self, player: int) -> Any:
        self.observation(player)
        agent = self.agents[player]
        return self._mask_of(agent, self.env.infos.get(agent) or {})

    def _after_step(self) -> None:
        env = self.env
        self._add_rewards(env.rewards)
        for agent in env.agents:
            number = self._number(agent)
            if not self._ended[number] and (env.terminations[agent] or env.truncations[agent]):
                self._seen[agent] = env.observe(agent)
                self.terminated[number] = bool(env.terminations[agent])
                self.truncated[number] = bool(env.truncations[agent])
                self._ended[number] = True

    def _select(self) -> None:
        """Advance to the next agent that can act; ended agents may only step None."""
        env = self.env
        self.to_act[:] = False
        while env.agents and not all(self._ended[self._number(agent)] for agent in env.agents):
            number = self._number(env.agent_selection)
            if not self._ended[number]:
                self.to_act[number] = True
                return
            env.step(None)
            self._after_step()


class SharedObservation:
    """Reads the observations of any agent into the leaves that all agents share."""

    def __init__(self, agents: list[str], of_agents: list[gymnasium.Space]) -> None:
        self._agents, self._spaces = agents, of_agents
        self._is_padded = any(space != of_agents[0] for space in of_agents)
        with_mask = isinstance(of_agents[0], spaces.Dict) and ACTION_MASK in of_agents[0].spaces
        if self._is_padded:
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
        if self._is_padded:
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
    """One ActionSpec for all agents, converted to the action space of each."""

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
            raise _unequal("action", agents, of_agents, "only Discrete ones are padded")
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
        """bool [A] of a player who is to act; `given` is the environment's mask, or None."""
        space = self._spaces[player]
        size = int(space.n) if isinstance(space, spaces.Discrete) else self.mask_size
        mask = np.zeros(self.mask_size, dtype=bool)
        if given is None:
            mask[:size] = True
            return mask
        mask[:size] = joined_mask(size, given) > 0
        if not mask.any():
            mask[:size] = True  # a policy needs something to draw from
        return mask


def _flat_size(agents: list[str], of_agents: list[gymnasium.Space]) -> list[int]:
    sizes = []
    for space in of_agents:
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise _unequal("observation", agents, of_agents, "only flat Box ones are padded")
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


def make_pettingzoo(
    name: str, num_games: int, seed: int = 0, same_step_reset: bool = False, **options: Any
) -> PettingZooGames:
    """Copies of a PettingZoo environment, in its parallel form where there is one.

    Args:
        name: "pettingzoo:<module>", such as "pettingzoo:mpe2.simple_spread_v3", or an id registered
            with PettingZoo, such as "pettingzoo:classic/connect_four-v3".
        num_games: How many copies.
        seed: Seed of the first copy; the others count up from it.
        same_step_reset: Whether a step that ends a game begins the next one at once.
        options: Keyword arguments of the environment.
    """
    path = name.removeprefix(PREFIX)
    maker = _registered(path) if "/" in path else _in_module(path)
    try:
        return PettingZooGames(lambda: maker(**options), num_games, seed, same_step_reset, name)
    except (TypeError, ImportError) as error:
        raise ConfigurationError(f"cannot make '{name}': {error}") from error


def _in_module(path: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ConfigurationError(
            f"cannot import '{path}' of the environment '{PREFIX}{path}': {error}; name a module "
            'such as pettingzoo:mpe2.simple_spread_v3, and run: pip install "veldt[pettingzoo]"'
        ) from error
    maker = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if maker is None:
        raise ConfigurationError(f"'{path}' has neither parallel_env nor env; name another module")
    return maker


def _registered(id: str) -> Callable[..., Any]:
    pettingzoo = _library()
    if not hasattr(pettingzoo, "make"):  # before 1.27
        raise ConfigurationError(
            f"this PettingZoo has no registry for '{id}'; name the module, for example "
            "pettingzoo:pettingzoo.classic.connect_four_v3, or update it"
        )
    for kind, known in (
        ("parallel", pettingzoo.parallel_registry),
        ("aec", pettingzoo.aec_registry),
    ):
        if id in known:
            return functools.partial(pettingzoo.make, kind, id)
    remedy = did_you_mean(id, pettingzoo.aec_registry, "name its module instead")
    raise ConfigurationError(f"'{id}' is not registered with PettingZoo; {remedy}")


def _library() -> Any:
    need = "pettingzoo: environments need PettingZoo"
    return extra_module("pettingzoo", need, extra="pettingzoo")


def _copy(env: Any) -> Copy:
    library = _library()
    if not isinstance(env, library.AECEnv | library.ParallelEnv):
        raise ConfigurationError(
            f"{type(env).__name__} is no PettingZoo environment; give a ParallelEnv or an AECEnv "
            "(a gymnasium.Env has a single agent: name it without pettingzoo:)"
        )
    if not getattr(env, "possible_agents", None):
        raise ConfigurationError(
            f"the PettingZoo environment {env} has no possible_agents; buffers need to know all "
            "agents before a game begins"
        )
    return ParallelCopy(env) if isinstance(env, library.ParallelEnv) else SequentialCopy(env)
