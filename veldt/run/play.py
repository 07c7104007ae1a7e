# SPDX-License-Identifier: Apache-2.0
"""A person against a run's newest model, in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from veldt.errors import ConfigurationError
from veldt.games import VectorGame, make_game
from veldt.league.strength import SeatPlayer
from veldt.run.loading import LAST, restored

_HERE = np.zeros(1, np.int64)


def play_run(
    run_dir: Path,
    env: str | None = None,
    seat: int = 0,
    seed: int = 0,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
    checkpoint: str | int = LAST,
) -> float:
    """Play one game in the terminal and return the person's reward; the model has other seats."""
    found = restored(run_dir, checkpoint)
    plan, weights = found.plan, found.weights
    trained = plan.problem.environment
    if env is not None and env != trained.name:
        raise ConfigurationError(f"{run_dir} has learned {trained.name}, not {env}")
    if not trained.is_game or plan.problem.spec.action.kind != "discrete":
        raise ConfigurationError(
            f"{trained.name} has no opponents, or several choices per move; give a run on a game of"
            " several players with one choice per move"
        )
    game = make_game(trained.name, 1, seed, **dict(trained.options))
    if seat >= game.spec.num_players:
        raise ConfigurationError(f"seat is {seat}; use 0 to {game.spec.num_players - 1}")
    model = SeatPlayer(plan.topology.network, weights.vector, game.spec.num_players, seed)
    game.reset(seed)
    total, names = 0.0, _action_names(game)
    while True:
        actions = np.zeros((1, game.spec.num_players), np.int64)
        for player in np.flatnonzero(game.to_act[0]).tolist():
            if player == seat:
                actions[0, player] = _asked(game, player, names, ask, say)
            else:
                actions[0, player] = _chosen(game, player, model)
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


def _action_names(game: VectorGame) -> list[str]:
    return list(game.action_names) or [str(one) for one in range(game.spec.action.sizes[0])]


def _legal(game: VectorGame, player: int) -> np.ndarray:
    if not game.spec.action_mask_size:
        return np.ones((1, game.spec.action.sizes[0]), bool)
    return game.legal(np.array([player]), _HERE)


def _chosen(game: VectorGame, player: int, model: SeatPlayer) -> int:
    legal = _legal(game, player) if game.spec.action_mask_size else None
    seat = np.array([player])
    # In card games, always playing the likeliest action would reveal the cards.
    hides_nothing = game.spec.id in ("veldt:tic_tac_toe", "veldt:connect_four")
    return int(model.act(seat, game.observe(seat, _HERE), legal, deterministic=hides_nothing)[0])


def _asked(
    game: VectorGame,
    player: int,
    names: list[str],
    ask: Callable[[str], str],
    say: Callable[[str], None],
) -> int:
    say(game.drawn(player))
    allowed = [names[action] for action in np.flatnonzero(_legal(game, player)[0])]
    while True:
        try:
            said = ask(f"your move ({', '.join(allowed)}): ").strip().lower()
        except EOFError:
            raise ConfigurationError("the game was left before its end") from None
        if said in allowed:
            return names.index(said)
        say(f"'{said}' is no move now")
