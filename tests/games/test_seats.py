# SPDX-License-Identifier: Apache-2.0
"""The counting game proves that rewards, masks and ends reach the right player's column."""

import numpy as np
import pytest
from cfr import expected_value
from counting_game import DEFAULT_LENGTHS, DEFAULT_ORDER, CountingGame
from simple_players import RandomOpponents

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.games import make_game
from veldt.games.pettingzoo_games import PettingZooGames, make_pettingzoo
from veldt.games.seats import LearningSeat, SeatColumns
from veldt.games.solvers import information_tree, opponent_reach, own_reach

PLAYERS = 3


def length_of(game, episode):
    return DEFAULT_LENGTHS[(game + episode) % len(DEFAULT_LENGTHS)]


def allowed(moves, player):
    return [(action + moves + player) % 3 != 0 for action in range(4)]


def learning_rows(game, num_rows):
    """What the contract says of one game's learning seat, worked out move by move."""
    rows, episode = [], 0
    while len(rows) < num_rows:
        seat, length = (game + episode) % PLAYERS, length_of(game, episode)
        mine = [move for move in range(length) if DEFAULT_ORDER[move % 4] == seat]
        for move, following in zip(mine, [*mine[1:], length], strict=False):
            rows.append(
                {
                    "seen": [game, episode, move, seat],
                    "mask": allowed(move, seat),
                    "reward": sum(1000 * seat + paid for paid in range(move + 1, following + 1)),
                    "terminated": following == length and episode % 2 == 0,
                    "truncated": following == length and episode % 2 == 1,
                    "final": [game, episode, length, seat] if following == length else None,
                }
            )
        episode += 1
    return rows[:num_rows]


class Witness(RandomOpponents):
    """Checks what opponents are shown, and keeps the results."""

    def __init__(self):
        super().__init__()
        self.results = []

    def act(self, turns):
        games, players, observations, legal = turns
        for game, player, seen, mask in zip(
            games, players, observations["observation"], legal, strict=True
        ):
            _, episode, moves, _ = seen
            assert seen.tolist() == [game, episode, moves, player]
            assert player == DEFAULT_ORDER[int(moves) % 4] != (game + episode) % PLAYERS
            assert mask.tolist() == allowed(moves, player)
        return super().act(turns)

    def game_over(self, games, seats, returns):
        rows = zip(games.tolist(), seats.tolist(), returns.tolist(), strict=True)
        self.results.extend((game, seat, *paid) for game, seat, paid in rows)


def first_legal(environment):
    return environment.observations["action_mask"].argmax(axis=1)


def test_every_row_of_the_learning_seat_is_its_own():
    witness = Witness()

    def make(num_envs):
        return LearningSeat(CountingGame(num_envs), witness)

    environment = EnvironmentFactory(make).make(5, seed=0)
    witness.results.clear()
    environment.reset()
    num_rows = 30
    expected = [learning_rows(game, num_rows) for game in range(5)]
    for number in range(num_rows):
        before = {name: array.copy() for name, array in environment.observations.items()}
        step = environment.step(first_legal(environment))
        for game in range(5):
            row = expected[game][number]
            assert before["observation"][game].tolist() == row["seen"]
            assert before["action_mask"][game].tolist() == row["mask"]
            assert step.reward[game] == row["reward"]
            assert step.terminated[game] == row["terminated"]
            assert step.truncated[game] == row["truncated"]
            if row["final"]:
                final = step.final_observations["final_observation"][game]
                assert final.tolist() == row["final"]
        assert not step.ignored.any()
        assert step.env_steps == 5
    for game in range(5):
        results = [result[1:] for result in witness.results if result[0] == game]
        assert len(results) > 10
        for episode, (seat, *returns) in enumerate(results):
            length = length_of(game, episode)
            moves = length * (length + 1) // 2
            assert seat == (game + episode) % PLAYERS
            assert returns == [1000 * player * length + moves for player in range(PLAYERS)]


def column_rows(game, player, num_rows, same_step):
    """What the contract says of one seat's column, step by step."""
    rows, episode = [], 0
    while len(rows) < num_rows:
        length = length_of(game, episode)
        for move in range(length):
            acts, last = DEFAULT_ORDER[move % 4] == player, move + 1 == length
            rows.append(
                {
                    "seen": [game, episode, move, player],
                    "mask": allowed(move, player) if acts else [True, False, False, False],
                    "reward": 1000 * player + move + 1,
                    "terminated": last and episode % 2 == 0,
                    "truncated": last and episode % 2 == 1,
                    "ignored": False,
                    "final": [game, episode, length, player] if last else None,
                }
            )
        if not same_step:
            row = {"seen": [game, episode, length, player], "mask": [True, False, False, False]}
            ends = {"terminated": False, "truncated": False, "ignored": True, "final": None}
            rows.append({**row, **ends, "reward": 0.0})
        episode += 1
    return rows[:num_rows]


@pytest.mark.parametrize("same_step", [False, True])
def test_every_seat_has_its_own_column(same_step):
    def make(num_envs):
        games = -(-num_envs // PLAYERS)
        return SeatColumns(CountingGame(games, same_step_reset=same_step), num_envs)

    factory = EnvironmentFactory(make)
    assert factory.spec().same_step_reset == same_step
    assert factory.spec().action_mask_size == 4
    environment = factory.make(9, seed=0)
    environment.reset()
    expected = [column_rows(*divmod(column, PLAYERS), 40, same_step) for column in range(9)]
    for number in range(40):
        before = {name: array.copy() for name, array in environment.observations.items()}
        step = environment.step(first_legal(environment))
        for column in range(9):
            row = expected[column][number]
            assert before["observation"][column].tolist() == row["seen"]
            assert before["action_mask"][column].tolist() == row["mask"]
            for name in ("reward", "terminated", "truncated", "ignored"):
                assert getattr(step, name)[column] == row[name], name
            if same_step and row["final"]:
                final = step.final_observations["final_observation"][column]
                assert final.tolist() == row["final"]


def test_a_simultaneous_game_has_no_waiting_rows():
    columns = SeatColumns(make_game("veldt:rock_paper_scissors", 2, same_step_reset=True))
    _, info = columns.reset()
    assert info["action_mask"].all()
    _, rewards, terminated, _, info = columns.step(np.array([0, 1, 2, 1]))
    assert rewards.tolist() == [-1, 1, 1, -1]
    assert terminated.all()
    learning = LearningSeat(make_game("veldt:rock_paper_scissors", 4), RandomOpponents())
    learning.reset()
    assert learning.seats.tolist() == [0, 1, 0, 1]
    assert learning.step(np.zeros(4, dtype=int))[2].all()
    assert learning.seats.tolist() == [1, 0, 1, 0]


class FirstLegal(RandomOpponents):
    def act(self, turns):
        return turns.legal.argmax(axis=1)


@pytest.mark.parametrize("name", ["veldt:leduc", "veldt:connect_four"])
def test_a_learning_seat_goes_on_where_it_was(name):
    first, second = (LearningSeat(make_game(name, 6, seed=4), FirstLegal()) for _ in range(2))
    shown, info = first.reset()
    for _ in range(15):
        shown, *_, info = first.step(info["action_mask"].argmax(axis=1))
    second.reset()
    again, info = second.load_state(first.state())
    np.testing.assert_array_equal(again, shown)
    for _ in range(25):
        actions = info["action_mask"].argmax(axis=1)
        *answers, info = first.step(actions)
        for one, other in zip(answers, second.step(actions), strict=False):
            np.testing.assert_array_equal(one, other)
    assert LearningSeat(PettingZooGames(countdown(), 1), FirstLegal()).state() is None


def countdown():
    return pytest.importorskip("small_pettingzoo").Countdown


def test_agents_that_leave_wait_for_the_next_game():
    columns = SeatColumns(PettingZooGames(countdown(), 1, same_step_reset=True))
    columns.reset()
    answers = [columns.step(np.zeros(3, dtype=int)) for _ in range(4)]
    assert [answer[2].tolist() for answer in answers] == [
        [True, False, False],
        [False, False, True],
        [False, True, False],
        [True, False, False],
    ]
    assert [answer[1].tolist() for answer in answers[:3]] == [[1, 11, 21], [0, 12, 22], [0, 13, 0]]
    finals = [answer[4]["final_obs"][answer[4]["_final_obs"]].tolist() for answer in answers]
    assert finals == [[[0, 1]], [[2, 2]], [[1, 3]], [[0, 1]]]
    assert answers[2][0].tolist() == [[0, 0], [1, 0], [2, 0]]

    learning = LearningSeat(PettingZooGames(countdown(), 3), RandomOpponents())
    learning.reset()
    rows = [learning.step(np.zeros(3, dtype=int)) for _ in range(3)]
    assert [row[1].tolist() for row in rows] == [[1, 11, 21], [11, 12, 22], [12, 13, 1]]
    assert [row[2].tolist() for row in rows] == [
        [True, False, False],
        [False, False, True],
        [False, True, True],
    ]


def test_real_games_open_as_environments():
    pytest.importorskip("mpe2")

    def make(num_envs, name="pettingzoo:mpe2.simple_spread_v3"):
        return SeatColumns(make_pettingzoo(name, -(-num_envs // 3), max_cycles=5), num_envs)

    factory = EnvironmentFactory(make)
    environment, random = factory.make(6, seed=3), np.random.default_rng(0)
    environment.reset()
    ends = 0
    for _ in range(12):
        step = environment.step(environment.random_actions(random))
        ends += int(step.truncated.sum())
    assert ends == 12
    assert step.env_steps == 0  # the twelfth step is a reset step: five, reset, five, reset

    def turns(num_envs):
        name = "pettingzoo:pettingzoo.classic.connect_four_v3"
        return LearningSeat(make_pettingzoo(name, num_envs), RandomOpponents())

    factory = EnvironmentFactory(turns)
    assert factory.spec().observation[0].name == "observation.observation"
    environment = factory.make(2, seed=0)
    environment.reset()
    for _ in range(60):
        environment.step(environment.random_actions(random))
    environment.close()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigurationError, match="without same_step_reset"):
        LearningSeat(CountingGame(1, same_step_reset=True), RandomOpponents())
    with pytest.raises(ConfigurationError, match="have no 4 columns"):
        SeatColumns(CountingGame(1), 4)


def test_a_move_of_a_turn_based_game_is_one_env_step():
    for name, rows in (("veldt:leduc", 2), ("veldt:rock_paper_scissors", 1)):
        factory = EnvironmentFactory(name)
        assert factory.spec().rows_per_env_step == rows
        environment, random = factory.make(7, seed=1), np.random.default_rng(0)
        environment.reset()
        counts = [environment.step(environment.random_actions(random)).env_steps for _ in range(20)]
        assert sum(counts) == 20 * 7 // rows
        environment.close()


def test_the_learning_seat_earns_what_the_exact_value_says():
    """Always betting in Kuhn against uniform play, from both seats in turn."""
    tree = information_tree("veldt:kuhn")
    learning = LearningSeat(make_game("veldt:kuhn", 500, seed=1), RandomOpponents(1))
    learning.reset()
    rewards = []
    for _ in range(40):
        _, reward, terminated, _, _ = learning.step(np.ones(500, dtype=int))
        rewards.append(reward[terminated])
    rewards = np.concatenate(rewards)
    betting = np.tile([0.0, 1.0], (12, 1))
    exact = 0.0
    for seat, sign in ((0, 1.0), (1, -1.0)):
        mine = (tree.players == seat)[:, None]
        exact += 0.5 * sign * expected_value(tree, np.where(mine, betting, tree.uniform()))
    assert abs(rewards.mean() - exact) < 4 * rewards.std() / len(rewards) ** 0.5


def test_returns_in_seat_columns_are_the_exact_action_values():
    """Uniform play in Kuhn: the mean return after betting minus that after passing, in every
    information state of both players, is what the exact values of two deviations say."""
    tree, random = information_tree("veldt:kuhn"), np.random.default_rng(0)
    numbers = {bytes(seen): state for state, seen in enumerate(tree.observations)}
    columns = SeatColumns(make_game("veldt:kuhn", 1000, same_step_reset=True))
    seen, info = columns.reset()
    episodes = [[] for _ in range(columns.num_envs)]
    returns = [([], []) for _ in range(tree.num_states)]
    for _ in range(60):
        mask = info["action_mask"]
        actions = np.where(mask, random.random(mask.shape), -1.0).argmax(axis=1)
        for column in np.flatnonzero(mask.all(axis=1)):
            episodes[column].append((numbers[bytes(seen[column])], actions[column]))
        seen, rewards, terminated, _, info = columns.step(actions)
        assert not rewards[~terminated].any()
        for column in np.flatnonzero(terminated):
            for state, action in episodes[column]:
                returns[state][action].append(rewards[column])
            episodes[column].clear()
    own = own_reach(tree, tree.uniform()[None])[0]
    for state, (passing, betting) in enumerate(returns):
        values = []
        for action in (0, 1):
            table = tree.uniform()
            table[state] = np.eye(2)[action]
            values.append(expected_value(tree, table) * (1 if tree.players[state] == 0 else -1))
        others = opponent_reach(tree, tree.uniform(), tree.players[state])
        reached = own[state] * others[tree.states == state].sum() / tree.states.shape[1]
        exact = (values[1] - values[0]) / reached
        error = (np.var(passing) / len(passing) + np.var(betting) / len(betting)) ** 0.5
        assert abs(np.mean(betting) - np.mean(passing) - exact) < 4.5 * error + 1e-5
