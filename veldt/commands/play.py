# SPDX-License-Identifier: Apache-2.0
"""`veldt play`: a person plays a game against a model of a run, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games import VectorGame, make_game
from veldt.networks import Memory, Player
from veldt.run.best import BEST
from veldt.run.loading import restored
from veldt.types import ACTION_MASK

_FIRST_GAME = np.zeros(1, np.int64)
_ALWAYS_GREEDY = ("veldt:tic_tac_toe", "veldt:connect_four")


def play_run(
    run_dir: Path,
    env: str | None = None,
    seat: int = 0,
    seed: int = 0,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
    checkpoint: str | int = BEST,
    policy: int | None = None,
    trust_code: bool = False,
) -> float:
    """Play one game and return the person's reward; the model plays every seat but `seat`."""
    found = restored(run_dir, checkpoint, policy=policy, trust_code=trust_code)
    trained = found.plan.problem.environment
    if env is not None and env != trained.name:
        raise ConfigurationError(f"{run_dir} has learned {trained.name}, not {env}")
    if not trained.is_game or found.plan.problem.spec.action.kind != "discrete":
        raise ConfigurationError(
            f"{trained.name} cannot be played against; give a run on a game of several players"
            " with one choice per move"
        )
    game = make_game(trained.name, 1, seed, **dict(trained.options))
    if seat >= game.spec.num_players:
        raise ConfigurationError(f"seat is {seat}; use 0 to {game.spec.num_players - 1}")
    model = Player(found.plan.topology.network.blank(), seed)
    model.load(found.weights.vector)
    memories: dict[int, Memory] = {}
    game.reset(seed)
    total, names = 0.0, game.action_names or [str(n) for n in range(game.spec.action.sizes[0])]
    while True:
        actions = np.zeros((1, game.spec.num_players), np.int64)
        for player in np.flatnonzero(game.to_act[0]).tolist():
            if player == seat:
                actions[0, player] = _asked(game, player, names, ask, say)
            else:
                actions[0, player] = _chosen(game, player, model, memories)
                if not game.spec.simultaneous:
                    say(f"player {player + 1}: {names[actions[0, player]]}")
        step = game.step(actions)
        total += float(step.rewards[0, seat])
        if step.over[0]:
            if game.spec.simultaneous:
                say(f"choices: {', '.join(names[action] for action in actions[0])}")
            say(game.drawn(seat))
            say(f"you {'win' if total > 0 else 'lose' if total < 0 else 'draw'}: {total:+g}")
            return total


def _legal(game: VectorGame, player: int) -> np.ndarray | None:
    """The mask of allowed actions; None where all are allowed."""
    has_mask = game.spec.action_mask_size > 0
    return game.legal(np.array([player]), _FIRST_GAME) if has_mask else None


def _chosen(game: VectorGame, player: int, model: Player, memories: dict[int, Memory]) -> int:
    """The model's action; `memories` has one entry for each player that has acted before."""
    seen, legal = game.observe(np.array([player]), _FIRST_GAME), _legal(game, player)
    if legal is not None:
        seen = {**seen, ACTION_MASK: legal}
    first = np.array([player not in memories])
    memory = memories.setdefault(player, model.start(1))
    # In card games, always playing the likeliest action would reveal the cards.
    return int(model.act(seen, memory, first, game.spec.id in _ALWAYS_GREEDY)[0])


def _asked(
    game: VectorGame,
    player: int,
    names: Sequence[str],
    ask: Callable[[str], str],
    say: Callable[[str], None],
) -> int:
    say(game.drawn(player))
    legal = _legal(game, player)
    allowed = [name for n, name in enumerate(names) if legal is None or legal[0, n]]
    while True:
        try:
            answer = ask(f"your move ({', '.join(allowed)}): ").strip().lower()
        except EOFError:
            raise ConfigurationError("the game was ended early") from None
        if answer in allowed:
            return names.index(answer)
        say(f"'{answer}' is no move now")
