# SPDX-License-Identifier: Apache-2.0
"""The league's rules against numbers worked out by hand."""

import numpy as np
import pytest

from veldt.league.matchmaking import (
    LEAGUE_EXPLOITER,
    MAIN,
    MAIN_EXPLOITER,
    Payoff,
    Roster,
    elo,
    opponent_chances,
    pfsp,
    ready_to_freeze,
    reset_after_freezing,
)


@pytest.mark.parametrize(
    ("weighting", "chances"),
    [
        ("squared", [1 / 1.3125, 0.25 / 1.3125, 0.0625 / 1.3125, 0]),
        ("variance", [0, 0.25 / 0.4375, 0.1875 / 0.4375, 0]),
        ("linear", [1 / 1.75, 0.5 / 1.75, 0.25 / 1.75, 0]),
        ("linear_capped", [0.5 / 1.25, 0.5 / 1.25, 0.25 / 1.25, 0]),
    ],
)
def test_pfsp(weighting, chances):
    np.testing.assert_allclose(pfsp(np.array([0.0, 0.5, 0.75, 1.0]), weighting), chances)
    np.testing.assert_allclose(pfsp(np.array([1.0, 1.0]), weighting), [0.5, 0.5])


def payoff_of(size):
    payoff = Payoff()
    for _ in range(size):
        payoff.add_player()
    return payoff


def test_the_payoff_forgets_slowly():
    payoff = payoff_of(3)
    assert payoff.win_rates(0).tolist() == [0.5, 0.5, 0.5]
    payoff.record(0, 1, 1, 0, 0)
    assert payoff.win_rates(0)[1] == 1.0
    payoff.record(1, 0, 1, 0, 0)  # now player 1 has the first seat, and wins
    assert payoff.win_rates(0)[1] == pytest.approx(0.99 / 1.99)
    assert payoff.win_rates(1)[0] == pytest.approx(1 / 1.99)
    payoff.record(0, 1, 0, 1, 0)
    games = 0.99 * 1.99 + 1
    assert payoff.games[0, 1] == payoff.games[1, 0] == pytest.approx(games)
    assert payoff.win_rates(0)[1] == pytest.approx((0.99 * 0.99 + 0.5) / games)
    assert payoff.win_rates(0)[2] == 0.5  # another pair is untouched
    assert payoff.seated_first.tolist() == [[0, 2, 0], [1, 0, 0], [0, 0, 0]]
    payoff.add_player()
    assert payoff.win_rates(0)[1:].tolist() == [pytest.approx((0.9801 + 0.5) / games), 0.5, 0.5]


def test_many_results_at_once_weigh_like_one_after_the_other():
    one, many = payoff_of(2), payoff_of(2)
    for _ in range(20):
        one.record(0, 1, 1, 0, 0)
    many.record(0, 1, wins=20, draws=0, losses=0)
    many.record(0, 1, wins=0, draws=0, losses=0)
    np.testing.assert_allclose(many.games, one.games)
    np.testing.assert_allclose(many.points, one.points)


def test_results_count_by_seat_and_those_against_itself_change_nothing():
    payoff = payoff_of(2)
    payoff.record(0, 1, wins=3, draws=1, losses=2)
    payoff.record(1, 0, wins=0, draws=0, losses=4)
    payoff.record(0, 0, wins=5, draws=0, losses=1)
    assert payoff.seated_first.tolist() == [[6, 6], [4, 0]]
    assert payoff.games[0, 0] == 0
    assert payoff.win_rates(0)[0] == 0.5
    assert payoff.win_rates(1)[0] == pytest.approx(1.0 - payoff.win_rates(0)[1])


def test_elo():
    assert elo(1200.0, 1200.0, 1.0) == (1216.0, 1184.0)
    assert elo(1200.0, 1200.0, 0.5) == (1200.0, 1200.0)
    first, second = elo(1600.0, 1200.0, 0.0)  # expected 10/11
    assert first == pytest.approx(1600 - 320 / 11)
    assert second == pytest.approx(1200 + 320 / 11)


def league(rates_of_player, **rates):
    """Main 0, main exploiter 1, league exploiter 2, frozen: main 3 and 4, main exploiter 5, league
    exploiter 6. `rates`: w of `rates_of_player` against p3, ..."""
    roster = Roster()
    for kind in (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER):
        roster.add(kind)
    for parent in (0, 0, 1, 2):
        roster.add(roster.kinds[parent], parent, frozen=True)
    payoff = payoff_of(7)
    for name, rate in rates.items():
        payoff.games[rates_of_player, int(name[1:])] = 100.0
        payoff.points[rates_of_player, int(name[1:])] = 100.0 * rate
    return roster, payoff


@pytest.mark.parametrize(
    ("player", "rates", "chances"),
    [
        # A main that beats all: squares 0.04, 0.01, 0.09, 0.36 have the sum 0.5. No verification,
        # so its share is self-play.
        (0, {"p3": 0.8, "p4": 0.9, "p5": 0.7, "p6": 0.4}, [0.5, 0, 0, 0.04, 0.01, 0.09, 0.36]),
        # An exploiter that beats it is met more often: squares 0.25, 0.25, 0.64, 0.25.
        (
            0,
            {"p3": 0.5, "p4": 0.5, "p5": 0.2, "p6": 0.5},
            [0.35, 0, 0, *np.array([0.125, 0.125, 0.32, 0.125]) / 1.39 + [0, 0, 0.15, 0]],
        ),
        # The past that it has forgotten: squares 0.16, 0.25, 0.01, 0.01, of which the first two.
        (
            0,
            {"p3": 0.6, "p4": 0.5, "p5": 0.9, "p6": 0.9},
            [
                *(0.35, 0, 0, 0.08 / 0.43 + 0.15 * 0.16 / 0.41, 0.125 / 0.43 + 0.15 * 0.25 / 0.41),
                *(0.005 / 0.43, 0.005 / 0.43),
            ],
        ),
        # 0.3 against an exploiter and 0.7 against its own past are not below the bounds.
        (
            0,
            {"p3": 0.7, "p4": 0.9, "p5": 0.3, "p6": 1.0},
            [0.5, 0, 0, *np.array([0.045, 0.005, 0.245, 0]) / 0.59],
        ),
        (1, {"p0": 0.11, "p3": 0.5, "p4": 0.8}, [1, 0, 0, 0, 0, 0, 0]),
        # A main that is too strong for the exploiter: its past, by w(1-w).
        (1, {"p0": 0.1, "p3": 0.5, "p4": 0.8}, [0, 0, 0, 0.25 / 0.41, 0.16 / 0.41, 0, 0]),
        (2, {"p3": 0.1, "p4": 0.5, "p5": 0.75, "p6": 1.0}, [0, 0, 0, 0.4, 0.4, 0.2, 0]),
    ],
)
def test_opponents_by_the_rules_of_alphastar(player, rates, chances):
    found = opponent_chances("alphastar", player, *league(player, **rates))
    np.testing.assert_allclose(found, chances, atol=1e-12)


def test_a_main_does_not_play_a_main_that_is_too_strong():
    roster, payoff = league(0, p3=0.9, p4=0.9, p5=0.9, p6=0.9)
    roster.add(MAIN)
    roster.add(MAIN, 7, frozen=True)
    roster.add(MAIN, 7, frozen=True)
    for number, rate in ((7, 0.3), (8, 0.5), (9, 0.9)):
        payoff.add_player()
        payoff.games[0, number], payoff.points[0, number] = 10.0, 10.0 * rate
    chances = opponent_chances("alphastar", 0, roster, payoff)
    over_all = 0.5 * pfsp(payoff.win_rates(0)[[3, 4, 5, 6, 8, 9]], "squared")
    # Player 8 is none of its own past, so no verification: a quarter for each main.
    assert chances[0] == 0.25
    assert chances[7] == 0.0
    assert chances[8] == pytest.approx(0.25 * 0.25 / 0.34 + over_all[4])
    assert chances[9] == pytest.approx(0.25 * 0.09 / 0.34 + over_all[5])
    payoff.points[0, 7] = 3.1
    assert opponent_chances("alphastar", 0, roster, payoff)[7] == 0.25


def test_the_simple_rules():
    roster, payoff = league(0, p3=0.0, p4=0.5, p5=0.5, p6=1.0)
    assert opponent_chances("latest", 0, roster, payoff).tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert opponent_chances("uniform", 0, roster, payoff)[3:].tolist() == [0.25] * 4
    squared = opponent_chances("pfsp", 0, roster, payoff)
    np.testing.assert_allclose(squared, np.array([0, 0, 0, 1, 0.25, 0.25, 0]) / 1.5)
    variance = opponent_chances("pfsp", 0, roster, payoff, "variance")
    assert variance.tolist() == [0, 0, 0, 0, 0.5, 0.5, 0]


@pytest.mark.parametrize("rule", ["latest", "uniform", "pfsp", "alphastar"])
@pytest.mark.parametrize("player", [0, 1, 2])
def test_before_any_player_is_frozen_the_main_is_met(rule, player):
    roster = Roster()
    for kind in (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER):
        roster.add(kind)
    expected = 0 if rule == "alphastar" else player
    chances = opponent_chances(rule, player, roster, payoff_of(3))
    np.testing.assert_allclose(chances, np.eye(3)[expected])


def test_freezing():
    roster, payoff = league(0, p3=0.8, p4=0.71, p5=0.9, p6=0.71)
    assert not ready_to_freeze(0, roster, payoff, 99, 100)
    assert ready_to_freeze(0, roster, payoff, 100, 100)
    payoff.points[0, 6] = 70.0  # w is 0.7, and must be above
    assert not ready_to_freeze(0, roster, payoff, 199, 100)
    assert ready_to_freeze(0, roster, payoff, 200, 100)

    roster, payoff = league(1, p0=0.8, p3=0.0)
    assert ready_to_freeze(1, roster, payoff, 100, 100)  # only the learning main counts
    roster, payoff = league(2, p0=1.0, p3=0.5, p4=1.0, p5=1.0, p6=1.0)
    assert not ready_to_freeze(2, roster, payoff, 100, 100)

    alone = Roster()
    alone.add(MAIN)
    assert ready_to_freeze(0, alone, payoff_of(1), 100, 100)


def test_resets():
    random = np.random.default_rng(0)
    share = {
        kind: np.mean([reset_after_freezing(kind, random) for _ in range(4000)])
        for kind in (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER)
    }
    assert share[MAIN] == 0.0
    assert share[MAIN_EXPLOITER] == 1.0
    assert share[LEAGUE_EXPLOITER] == pytest.approx(0.25, abs=0.03)
