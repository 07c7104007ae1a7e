# SPDX-License-Identifier: Apache-2.0
"""PettingZoo environments, parallel and AEC, with the interface of the native games.

Players are numbered by `possible_agents`. One observation and one action fit all agents: equal
spaces are used as they are, flat observations of unequal length are padded with zeros, and smaller
numbers of choices with masked actions. Other differences are refused. Where agents have several
policies, the number of the policy is one more entry of the observation.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.util
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from veldt.environments.lookup import PETTINGZOO_GAMES, one_line
from veldt.environments.spaces import action_offset, action_spec, joined_mask, leaf_readers
from veldt.errors import ConfigurationError, did_you_mean, extra_module, install, nearest
from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.types import ACTION_MASK, POLICY, ObservationLeaf


class PettingZooGames(VectorGame):
    """Copies of a PettingZoo environment, stepped one after the other in this process."""

    def __init__(
        self,
        make: Callable[[], Any],
        num_games: int,
        seed: int = 0,
        id: str = "pettingzoo",
        policies: str = "",
    ) -> None:
        self._copies = [_copy(make()) for _ in range(num_games)]
        self.agents = agents = self._copies[0].agents
        env = self._copies[0].env
        names = policy_of_each(policies, agents) if policies else ()
        observed = list(map(env.observation_space, agents))
        self._observation = SharedObservation(agents, observed, names)
        self._action = SharedAction(agents, list(map(env.action_space, agents)))
        self.action_space = self._action.space
        self._seeds: list[int | None] = [*range(seed, seed + num_games)]
        spec = GameSpec(
            id,
            len(self.agents),
            self._observation.leaves,
            self._action.spec,
            self._action.mask_size,
            isinstance(self._copies[0], ParallelCopy),
            names,
        )
        super().__init__(spec, num_games)

    @property
    def to_act(self) -> np.ndarray:
        return np.stack([copy.to_act for copy in self._copies])

    def drawn(self, player: int) -> str:
        """The game's own text, or a board of two planes of stones, where the player's are X."""
        copy = self._copies[0]
        if "ansi" in copy.env.metadata.get("render_modes", ()):
            copy.env.unwrapped.render_mode = "ansi"
            return str(copy.env.render())
        seen = copy.env.observe(self.agents[player]) if isinstance(copy, SequentialCopy) else None
        board = np.asarray(seen["observation"] if isinstance(seen, dict) else seen)
        if board.ndim != 3 or board.shape[2] != 2:
            return super().drawn(player)
        stones = np.where(board[..., 0] > 0, "X", np.where(board[..., 1] > 0, "O", "."))
        return "\n".join(map(" ".join, stones.tolist()))

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._seeds = [*range(seed, seed + self.num_games)]
        self.over[:] = True
        self.begin(self.over)

    def begin(self, games: np.ndarray) -> None:
        for game in np.flatnonzero(games & self.over).tolist():
            copy = self._copies[game]
            copy.reset(self._seeds[game])
            if not copy.to_act.any():
                raise ConfigurationError(f"{copy.env} has no agent to act after its reset")
            self._seeds[game] = None
            self.over[game] = False

    def observe(
        self, players: np.ndarray, games: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        pairs = self._pairs(players, games)
        seen = [self._copies[game].observation(player) for game, player in pairs]
        return self._observation.read(seen, players)

    def legal(self, players: np.ndarray, games: np.ndarray | None = None) -> np.ndarray:
        legal = np.tile(self._action.forced, (len(players), 1))
        for row, (game, player) in enumerate(self._pairs(players, games)):
            copy = self._copies[game]
            if copy.to_act[player]:
                legal[row] = self._action.mask(player, copy.mask(player))
        return legal

    def step(self, actions: np.ndarray, games: np.ndarray | None = None) -> GameStep:
        step = GameStep.empty(self.num_games, self.spec.num_players)
        for game in np.flatnonzero(~self.over if games is None else games & ~self.over).tolist():
            copy = self._copies[game]
            chosen: list[Any] = [None] * len(copy.agents)
            for player in np.flatnonzero(copy.to_act).tolist():
                chosen[player] = self._action.of(player, actions[game, player])
            copy.step(chosen)
            step.rewards[game] = copy.rewards
            step.terminated[game], step.truncated[game] = copy.terminated, copy.truncated
            step.over[game] = self.over[game] = not copy.to_act.any()
        return step

    def close(self) -> None:
        for copy in self._copies:
            copy.env.close()

    def _pairs(self, players: np.ndarray, games: np.ndarray | None) -> list[tuple[int, int]]:
        numbers = range(self.num_games) if games is None else games.tolist()
        return list(zip(numbers, players.tolist(), strict=True))


class Copy(ABC):
    """One game and the result of its last step; arrays have one entry per player."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        self.to_act, self.terminated, self.truncated = np.zeros((3, len(self.agents)), bool)
        self.rewards = np.zeros(len(self.agents), dtype=np.float32)
        self._seen: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}
        self._numbers = {agent: number for number, agent in enumerate(self.agents)}

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Begin a new game; the first one uses the seed, later ones continue its random stream."""

    @abstractmethod
    def step(self, actions: list[Any]) -> None:
        """Play the actions of the players who are to act; other entries are ignored."""

    def observation(self, player: int) -> Any:
        """The newest observation of a player; None if it had none in this game."""
        return self._seen.get(self.agents[player])

    def mask(self, player: int) -> Any:
        """The player's action mask; None where there is none."""
        seen = self.observation(player)
        if isinstance(seen, dict) and ACTION_MASK in seen:
            return seen[ACTION_MASK]
        return (self._infos.get(self.agents[player]) or {}).get(ACTION_MASK)

    def _forget_step(self) -> None:
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0

    def _add_rewards(self, rewards: dict[str, Any]) -> None:
        for agent, reward in rewards.items():
            self.rewards[self._numbers[agent]] += float(reward)


class ParallelCopy(Copy):
    """A parallel environment: all present agents act in each step."""

    def reset(self, seed: int | None) -> None:
        self._forget_step()
        seen, self._infos = self.env.reset(seed=seed)
        self._seen = dict(seen)
        self._set_to_act()

    def step(self, actions: list[Any]) -> None:
        self._forget_step()
        chosen = {agent: actions[self._numbers[agent]] for agent in self.env.agents}
        seen, rewards, terminated, truncated, self._infos = self.env.step(chosen)
        self._seen.update(seen)
        self._add_rewards(rewards)
        for flags, ends in ((self.terminated, terminated), (self.truncated, truncated)):
            for agent, ended in ends.items():
                flags[self._numbers[agent]] = bool(ended) and self.to_act[self._numbers[agent]]
        acted = self.to_act.copy()
        self._set_to_act()
        # Some environments remove an agent without a flag; its column must end nevertheless.
        self.truncated |= acted & ~self.to_act & ~self.terminated

    def _set_to_act(self) -> None:
        self.to_act[:] = False
        self.to_act[[self._numbers[agent] for agent in self.env.agents]] = True
        self.to_act &= ~(self.terminated | self.truncated)


class SequentialCopy(Copy):
    """An AEC environment: agents act one after the other; ended ones are removed on their turn."""

    def reset(self, seed: int | None) -> None:
        self._forget_step()
        self.env.reset(seed=seed)
        self._seen = {}
        self._ended = np.zeros(len(self.agents), dtype=bool)
        self._select()

    def step(self, actions: list[Any]) -> None:
        self._forget_step()
        self.env.step(actions[self._numbers[self.env.agent_selection]])
        self._after_step()
        self._select()

    def observation(self, player: int) -> Any:
        agent = self.agents[player]
        if agent in self.env.agents and not self._ended[player]:
            self._seen[agent] = self.env.observe(agent)
        return self._seen.get(agent)

    def _after_step(self) -> None:
        env = self.env
        self._add_rewards(env.rewards)
        for agent in env.agents:
            number = self._numbers[agent]
            if not self._ended[number] and (env.terminations[agent] or env.truncations[agent]):
                self._seen[agent] = env.observe(agent)
                self.terminated[number] = bool(env.terminations[agent])
                self.truncated[number] = bool(env.truncations[agent])
                self._ended[number] = True

    def _select(self) -> None:
        """Advance to the next agent that can act; ended agents may only step None."""
        env = self.env
        self.to_act[:] = False
        while not all(self._ended[self._numbers[agent]] for agent in env.agents):
            number = self._numbers[env.agent_selection]
            if not self._ended[number]:
                self.to_act[number] = True
                break
            env.step(None)
            self._after_step()
        self._infos = env.infos


class SharedObservation:
    """Reads the observations of any agent into the leaves that all agents share."""

    def __init__(self, agents: list[str], of_agents: list[Any], policies: tuple[str, ...]) -> None:
        self._spaces, self._space = of_agents, _common_space("observation", agents, of_agents)
        with_mask = isinstance(self._space, spaces.Dict) and ACTION_MASK in self._space.spaces
        self._readers = leaf_readers(self._space, with_mask)
        self.leaves = tuple(reader.leaf for reader in self._readers)
        names = list(dict.fromkeys(policies))
        self._policies = np.array([names.index(policy) for policy in policies])
        if policies:
            if self.leaves[0].name == "observation":
                self.leaves = (replace(self.leaves[0], name="observation.observation"),)
            if any(leaf.name == POLICY for leaf in self.leaves):
                raise ConfigurationError("observations have an entry 'policy' already; rename it")
            number = ObservationLeaf(POLICY, (), "int64", "discrete", len(names))
            self.leaves = (*self.leaves, number)
        empty = create_empty_array(self._space, n=1)
        self._nothing = next(iter(iterate(batch_space(self._space, 1), empty)))

    def read(self, seen: list[Any], players: np.ndarray) -> dict[str, np.ndarray]:
        """leaf -> [N, ...] of N observations, each of one player; zeros for None."""
        try:
            rows = [self._row(one, player) for one, player in zip(seen, players, strict=True)]
            empty: Any = create_empty_array(self._space, n=len(rows))
            batch = concatenate(self._space, rows, empty)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"a PettingZoo agent's observation is not in its observation space: {error}"
            ) from error
        arrays = [np.array(each.read(batch), dtype=each.leaf.dtype) for each in self._readers]
        if self._policies.size:
            arrays.append(self._policies[players])
        return {leaf.name: array for leaf, array in zip(self.leaves, arrays, strict=True)}

    def _row(self, seen: Any, player: int) -> Any:
        own = self._spaces[player]
        if seen is None or own == self._space:
            return self._nothing if seen is None else seen
        row = self._nothing.copy()
        row[: own.shape[0]] = seen
        return row


class SharedAction:
    """One ActionSpec for all agents, converted to the action space of each."""

    def __init__(self, agents: list[str], of_agents: list[Any]) -> None:
        self._spaces = of_agents
        self._offsets = [action_offset(space) for space in of_agents]
        self.space = _common_space("action", agents, of_agents)
        self.spec = action_spec(self.space)
        self.mask_size = sum(self.spec.sizes)
        self.forced = np.zeros(self.mask_size, dtype=bool)
        """Only action 0: the mask of a player who is not to act."""
        if self.mask_size:
            self.forced[np.cumsum([0, *self.spec.sizes[:-1]])] = True

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
        mask[:size] = True if given is None else joined_mask(size, given) > 0
        if not mask.any():
            mask[:size] = True  # a policy needs something to draw from
        return mask


def _common_space(what: str, agents: list[str], of_agents: list[Any]) -> Any:
    """The one space of all agents, or one to which theirs are padded."""
    first = of_agents[0]
    other = next((number for number, space in enumerate(of_agents) if space != first), None)
    if other is None:
        return first
    if what == "observation":
        padded = "flat Box"
        if all(isinstance(space, spaces.Box) and len(space.shape) == 1 for space in of_agents):
            width = max(space.shape[0] for space in of_agents)
            return spaces.Box(-np.inf, np.inf, (width,), np.float32)
    else:
        padded = "Discrete"
        if all(isinstance(space, spaces.Discrete) for space in of_agents):
            return spaces.Discrete(max(space.n for space in of_agents))
    raise ConfigurationError(
        f"the {what} spaces of the PettingZoo agents differ: {agents[0]} has {first}, "
        f"{agents[other]} has {of_agents[other]}; only {padded} ones are padded, so make them alike"
        " (SuperSuit's pad wrappers do) or train one kind of agent"
    )


def policy_of_each(policies: str, agents: Sequence[str]) -> tuple[str, ...]:
    """The policy of each agent, of text such as "wolf=a,b;sheep=c"."""
    found: dict[str, str] = {}
    for part in policies.split(";"):
        policy, _, patterns = map(str.strip, part.partition("="))
        for pattern in map(str.strip, patterns.split(",")):
            if not policy or not (named := fnmatch.filter(agents, pattern)):
                near = did_you_mean(pattern, agents)
                raise ConfigurationError(f"policies: '{part}' has no agent '{pattern}'; {near}")
            for agent in named:
                if agent in found:
                    raise ConfigurationError(f"policies: {agent} is named twice; name it once")
                found[agent] = policy
    if missing := [agent for agent in agents if agent not in found]:
        raise ConfigurationError(f"policies: no policy has {', '.join(missing)}; add it to one")
    return tuple(found[agent] for agent in agents)


def make_pettingzoo(
    name: str, num_games: int, seed: int = 0, policies: str = "", **options: Any
) -> PettingZooGames:
    """Copies of "pettingzoo:<module>" or of an id registered with PettingZoo, which has a slash.

    In the parallel form where there is one."""
    path = name.removeprefix(PETTINGZOO_GAMES)
    maker = _registered(path) if "/" in path else _in_module(path)
    try:
        return PettingZooGames(lambda: maker(**options), num_games, seed, name, policies)
    except ImportError as error:
        raise ConfigurationError(f"cannot make '{name}': {error}") from error


def _in_module(path: str) -> Callable[..., Any]:
    if importlib.util.find_spec(path.partition(".")[0]) is None and _library():
        path = f"pettingzoo.{path}"  # classic.tictactoe_v3
    try:
        module = vars(importlib.import_module(path))
    except ImportError as error:
        raise ConfigurationError(
            f"cannot import '{path}': {one_line(error)}; {_remedy(path)}"
        ) from error
    maker: Callable[..., Any] | None = module.get("parallel_env") or module.get("env")
    if maker is None:
        raise ConfigurationError(f"'{path}' has neither parallel_env nor env; {_remedy(path)}")
    return maker


def known_modules() -> list[str]:
    """Modules with a game, of PettingZoo and of MPE2, such as "classic.tictactoe_v3"."""
    library, mpe = (importlib.util.find_spec(name) for name in ("pettingzoo", "mpe2"))
    found = [_as_module(id) for id in getattr(_library(), "aec_registry", ())] if library else []
    modules = pkgutil.iter_modules(mpe.submodule_search_locations) if mpe else ()
    return found + [f"mpe2.{module.name}" for module in modules if "_v" in module.name]


def _as_module(id: str) -> str:
    return id.replace("/", ".").replace("-", "_").removeprefix("pettingzoo.")


def _remedy(name: str) -> str:
    """What to do about a game that cannot be found or imported."""
    path, known = _as_module(name), known_modules()
    if path in known:
        return f'run: pip install "pettingzoo[{path.partition(".")[0]}]"'
    if near := nearest(path, known):
        return f"did you mean pettingzoo:{near[0]}?"
    return f"name one such as pettingzoo:classic.rps_v2, and run: {install('pettingzoo')}"


def _registered(id: str) -> Callable[..., Any]:
    library = _library()
    known = [*library.aec_registry, *library.parallel_registry]
    if id.replace("_v", "-v") not in (*known, *(each.rpartition("-v")[0] for each in known)):
        raise ConfigurationError(f"PettingZoo has no '{id}'; {_remedy(id)}")
    form = "parallel" if id in library.parallel_registry else "aec"
    return functools.partial(library.make, form, id)


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
    return ParallelCopy(env) if isinstance(env, library.ParallelEnv) else SequentialCopy(env)
