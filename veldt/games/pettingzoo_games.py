# SPDX-License-Identifier: Apache-2.0
"""PettingZoo environments, parallel and AEC, under the interface of the native games."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from veldt.errors import ConfigurationError, extra_module
from veldt.games.interface import GameSpec, GameStep, VectorGame
from veldt.games.pettingzoo_copies import Copy, ParallelCopy, SequentialCopy
from veldt.games.pettingzoo_spaces import SharedAction, SharedObservation

PREFIX = "pettingzoo:"


class PettingZooGames(VectorGame):
    """B copies of a PettingZoo environment, stepped one after the other in this process."""

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
        said: list[Any] = [None] * len(copy.agents)
        for player in np.flatnonzero(step.acted[game]):
            said[player] = self._action.of(int(player), actions[player])
        copy.step(said)
        step.rewards[game] = copy.rewards
        step.terminated[game], step.truncated[game] = copy.terminated, copy.truncated
        step.over[game] = copy.over


def make_pettingzoo(
    name: str, num_games: int, seed: int = 0, same_step_reset: bool = False, **options: Any
) -> PettingZooGames:
    """`num_games` copies of "pettingzoo:<module>", for example "pettingzoo:mpe2.simple_spread_v3",
    or of an id that is registered with PettingZoo, as "pettingzoo:classic/connect_four-v3"; the
    parallel form where there is one. `options` are those of the environment."""
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
    near = difflib.get_close_matches(id, pettingzoo.aec_registry, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]}?" if near else "name its module instead"
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
