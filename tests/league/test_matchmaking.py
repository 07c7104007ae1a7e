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
    branches,
    choose_opponent,
    elo,
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


@pytest.mark.parametrize(
    ("weighting", "rates"), [("squared", [1.0, 1.0]), ("variance", [0.0, 1.0]), ("linear", [1, 1])]
)
def test_pfsp_is_uniform_where_nothing_is_left_to_learn(weighting, rates):
    np.testing.assert_allclose(pfsp(np.array(rates), weighting), [0.5, 0.5])


def payoff_of(size):
    payoff = Payoff()
    for number in range(size):
        assert payoff.add_player() == number
    return payoff


def test_the_payoff_forgets_slowly():
    payoff = payoff_of(3)
    assert payoff.win_rates(0).tolist() == [0.5, 0.5, 0.5]
    payoff.record(0, 1, 1.0)
    assert payoff.win_rates(0)[1] == 1.0
    payoff.record(1, 0, 1.0)  # now player 1 has the first seat, and wins
    assert payoff.win_rates(0)[1] == pytest.approx(0.99 / 1.99)
    assert payoff.win_rates(1)[0] == pytest.approx(1 / 1.99)
    payoff.record(0, 1, 0.5)
    games = 0.99 * 1.99 + 1
    assert payoff.games[0, 1] == payoff.games[1, 0] == pytest.approx(games)
    assert payoff.win_rates(0)[1] == pytest.approx((0.99 * 0.99 + 0.5) / games)
    assert payoff.win_rates(0)[2] == 0.5  # another pair is untouched
    assert payoff.seated_first.tolist() == [[0, 2, 0], [1, 0, 0], [0, 0, 0]]


def test_a_game_against_itself_is_even():
    payoff = payoff_of(1)
    payoff.record(0, 0, 1.0)
    assert payoff.win_rates(0).tolist() == [0.5]
    assert payoff.seated_first.tolist() == [[1]]


def test_the_payoff_grows_and_comes_back():
    payoff = payoff_of(2)
    payoff.record(0, 1, 1.0)
    payoff.add_player()
    payoff.record(2, 0, 0.0)
    assert payoff.win_rates(0).tolist() == [0.5, 1.0, 1.0]
    again = Payoff()
    again.load_state(payoff.state())
    again.record(0, 1, 0.0)
    assert again.win_rates(0)[1] == pytest.approx(0.99 / 1.99)
    assert payoff.win_rates(0)[1] == 1.0


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
        roster.add_learning(kind)
    for parent in (0, 0, 1, 2):
        roster.add_frozen(parent)
    payoff = payoff_of(7)
    for name, rate in rates.items():
        payoff.games[rates_of_player, int(name[1:])] = 100.0
        payoff.points[rates_of_player, int(name[1:])] = 100.0 * rate
    return roster, payoff


def table(ways):
    return {
        way.reason: (
            way.chance,
            dict(zip(way.opponents.tolist(), way.chances.round(9).tolist(), strict=True)),
        )
        for way in ways
    }


def test_who_is_who():
    roster, _ = league(0)
    assert roster.learning_mains().tolist() == [0]
    assert roster.all_frozen().tolist() == [3, 4, 5, 6]
    assert roster.frozen_exploiters().tolist() == [5]
    assert roster.snapshots_of(0).tolist() == [3, 4]
    again = Roster()
    again.load_state(roster.state())
    assert again == roster
    with pytest.raises(ValueError, match="unknown kind of player"):
        roster.add_learning("coach")


def test_a_main_that_beats_all_plays_pfsp_and_itself():
    roster, payoff = league(0, p3=0.8, p4=0.9, p5=0.7, p6=0.4)
    # Squares: 0.04, 0.01, 0.09, 0.36; sum 0.5. No verification, so its share goes to self-play.
    assert table(branches("alphastar", 0, roster, payoff)) == {
        "pfsp": (0.5, {3: 0.08, 4: 0.02, 5: 0.18, 6: 0.72}),
        "self_play": (0.5, {0: 1.0}),
    }


def test_a_main_meets_the_exploiters_that_beat_it():
    roster, payoff = league(0, p3=0.5, p4=0.5, p5=0.2, p6=0.5)
    ways = table(branches("alphastar", 0, roster, payoff))
    assert ways["exploited"] == (0.15, {5: 1.0})
    assert "forgotten" not in ways
    assert ways["self_play"][0] == pytest.approx(0.35)
    roster, payoff = league(0, p3=0.9, p4=0.9, p5=0.3, p6=0.0)
    assert "exploited" not in table(branches("alphastar", 0, roster, payoff))  # 0.3 is not below


def test_a_main_meets_the_past_it_has_forgotten():
    roster, payoff = league(0, p3=0.6, p4=0.5, p5=0.9, p6=0.9)
    ways = table(branches("alphastar", 0, roster, payoff))
    assert ways["forgotten"][0] == 0.15
    assert ways["forgotten"][1] == pytest.approx({3: 0.16 / 0.41, 4: 0.25 / 0.41})
    roster, payoff = league(0, p3=0.6, p4=0.7, p5=0.9, p6=0.9)
    assert table(branches("alphastar", 0, roster, payoff))["forgotten"][1] == {3: 1.0}


def test_a_main_does_not_play_a_main_that_is_too_strong():
    roster, payoff = league(0, p3=0.9, p4=0.9, p5=0.9, p6=0.9)
    other = roster.add_learning(MAIN)
    payoff.add_player()
    past = [roster.add_frozen(other), roster.add_frozen(other)]
    for number, rate in ((other, 0.3), (past[0], 0.5), (past[1], 0.9)):
        if number >= len(payoff.games):
            payoff.add_player()
        payoff.games[0, number], payoff.points[0, number] = 10.0, 10.0 * rate
    ways = table(branches("alphastar", 0, roster, payoff))
    assert ways["self_play"] == (0.25, {0: 1.0})
    assert ways["curriculum"][0] == 0.25
    assert ways["curriculum"][1] == pytest.approx({8: 0.25 / 0.34, 9: 0.09 / 0.34})
    payoff.points[0, other] = 3.1
    assert "curriculum" not in table(branches("alphastar", 0, roster, payoff))


def test_a_main_exploiter_plays_the_main_or_its_past():
    roster, payoff = league(1, p0=0.11, p3=0.5, p4=0.8)
    assert table(branches("alphastar", 1, roster, payoff)) == {"exploit": (1.0, {0: 1.0})}
    roster, payoff = league(1, p0=0.1, p3=0.5, p4=0.8)
    ways = table(branches("alphastar", 1, roster, payoff))
    assert ways["curriculum"][0] == 1.0
    assert ways["curriculum"][1] == pytest.approx({3: 0.25 / 0.41, 4: 0.16 / 0.41})


def test_a_league_exploiter_plays_all_that_are_frozen():
    roster, payoff = league(2, p3=0.1, p4=0.5, p5=0.75, p6=1.0)
    assert table(branches("alphastar", 2, roster, payoff)) == {
        "pfsp": (1.0, {3: 0.4, 4: 0.4, 5: 0.2, 6: 0.0})
    }


def test_the_simple_rules():
    roster, payoff = league(0, p3=0.0, p4=0.5, p5=0.5, p6=1.0)
    assert table(branches("latest", 0, roster, payoff)) == {"self_play": (1.0, {0: 1.0})}
    quarter = {3: 0.25, 4: 0.25, 5: 0.25, 6: 0.25}
    assert table(branches("uniform", 0, roster, payoff)) == {"uniform": (1.0, quarter)}
    squared = table(branches("pfsp", 0, roster, payoff))["pfsp"][1]
    assert squared == pytest.approx({3: 1 / 1.5, 4: 0.25 / 1.5, 5: 0.25 / 1.5, 6: 0.0})
    variance = table(branches("pfsp", 0, roster, payoff, "variance"))["pfsp"][1]
    assert variance == {3: 0.0, 4: 0.5, 5: 0.5, 6: 0.0}
    with pytest.raises(ValueError, match="unknown rule"):
        branches("best", 0, roster, payoff)


@pytest.mark.parametrize("rule", ["latest", "uniform", "pfsp", "alphastar"])
@pytest.mark.parametrize("player", [0, 1, 2])
def test_before_anybody_is_frozen_the_main_is_met(rule, player):
    roster = Roster()
    for kind in (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER):
        roster.add_learning(kind)
    ways = branches(rule, player, roster, payoff_of(3))
    assert sum(way.chance for way in ways) == pytest.approx(1.0)
    expected = 0 if rule == "alphastar" else player
    assert choose_opponent(ways, np.random.default_rng(0))[0] == expected


def test_opponents_are_drawn_by_their_chances():
    roster, payoff = league(0, p3=0.8, p4=0.9, p5=0.7, p6=0.4)
    ways, random = branches("alphastar", 0, roster, payoff), np.random.default_rng(0)
    drawn = [choose_opponent(ways, random)[0] for _ in range(20_000)]
    share = np.bincount(drawn, minlength=7) / len(drawn)
    np.testing.assert_allclose(share, [0.5, 0, 0, 0.04, 0.01, 0.09, 0.36], atol=0.015)


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


def test_the_first_main_is_frozen_after_one_period():
    roster = Roster()
    roster.add_learning(MAIN)
    assert ready_to_freeze(0, roster, payoff_of(1), 100, 100)


def test_resets():
    random = np.random.default_rng(0)
    share = {
        kind: np.mean([reset_after_freezing(kind, random) for _ in range(4000)])
        for kind in (MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER)
    }
    assert share[MAIN] == 0.0
    assert share[MAIN_EXPLOITER] == 1.0
    assert share[LEAGUE_EXPLOITER] == pytest.approx(0.25, abs=0.03)
