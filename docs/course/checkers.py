# SPDX-License-Identifier: Apache-2.0
"""Checkers of the exercises: each takes a function and returns RIGHT, or one line with a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

RIGHT = "Right."
Answer = Callable[..., Any]
NO, YES = np.array([False]), np.array([True])


class Case(NamedTuple):
    """One call of the answer."""

    arguments: tuple[Any, ...]
    expected: Any
    hint: str


def td_targets(answer: Answer) -> str:
    """dqn: targets of Q-learning with a target network."""
    one, values = np.array([1.0]), np.array([[2.0, 5.0]])
    two = (np.array([1.0, 2.0]), np.array([False, True]), np.array([False, False]))
    cases = [
        Case(
            (one, NO, NO, values, 0.9),
            [5.5],
            "a step inside an episode. What will the greedy policy collect from there?",
        ),
        Case(
            (one, NO, NO, -values, 0.5),
            [0.0],
            "a step whose next values are all negative. Which of them is the best?",
        ),
        Case(
            (one, YES, NO, values, 0.9),
            [1.0],
            "a step that terminates its episode. Which rewards follow it?",
        ),
        Case(
            (one, NO, YES, values, 0.9),
            [5.5],
            "a truncated step. Would the task have continued without the time limit?",
        ),
        Case((*two, values - [[4.0], [0.0]], 0.9), [1.9, 2.0], "a batch of two steps."),
    ]
    return _check(answer, cases)


def serve(answer: Answer) -> str:
    """gorila: a parameter server that refuses old gradients."""
    start, step = np.array([1.0, 2.0]), np.array([1.0, -1.0])
    cases = [
        Case(
            (start.copy(), [(0, step)], 0.5, 0),
            ([0.5, 2.5], 1, 0),
            "a gradient of the newest weights. It must lower the loss and make one new version.",
        ),
        Case(
            (start.copy(), [(0, step), (0, step)], 0.5, 1),
            ([0.0, 3.0], 2, 0),
            "a gradient that is exactly as old as allowed.",
        ),
        Case(
            (start.copy(), [(0, step), (0, step)], 0.5, 0),
            ([0.5, 2.5], 1, 1),
            "a gradient that is too old. How old is it when it arrives?",
        ),
        Case(
            (start.copy(), [(0, step), (0, step), (1, step)], 0.5, 0),
            ([0.0, 3.0], 2, 1),
            "a gradient after a refused one. Which version has the server then?",
        ),
    ]
    return _check(answer, cases)


def n_step_returns(answer: Answer) -> str:
    """a3c: the forward view from every row of a trajectory."""
    rewards = np.array([1.0, 2.0, 4.0])
    go_on, end = np.array([False, False, False]), np.array([False, True, False])
    cases = [
        Case(
            (rewards[:1], NO, 10.0, 0.5),
            [6.0],
            "a trajectory of one step. When does `last_value` arrive, and what is it worth?",
        ),
        Case(
            (rewards, go_on, 0.0, 0.5),
            [3.0, 4.0, 4.0],
            "three steps with `last_value` 0. A row sees the rewards from its own on.",
        ),
        Case(
            (rewards, go_on, 8.0, 0.5),
            [4.0, 6.0, 8.0],
            "three steps. How far is `last_value` from each row?",
        ),
        Case(
            (rewards, end, 8.0, 0.5),
            [2.0, 2.0, 8.0],
            "an episode that ends inside the trajectory. What may cross its end?",
        ),
        Case((rewards[:1], YES, 10.0, 0.5), [1.0], "an episode that ends in the last row."),
    ]
    return _check(answer, cases)


def actor_critic_loss(answer: Answer) -> str:
    """a2c: the loss of one synchronous batch and its gradient."""

    def loss_and_gradients(returns: list[float]) -> tuple[Any, ...]:
        inputs = [torch.tensor(each, requires_grad=True) for each in ([-1.0, -2.0], [1.0, 1.0])]
        loss = answer(*inputs, torch.tensor(returns), 0.5)
        if loss is None:
            return None, None, None
        if not isinstance(loss, torch.Tensor):
            raise TypeError("the result must be a tensor")
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        return loss.detach(), *(np.zeros(2) if each is None else each for each in gradients)

    def part(index: int) -> Answer:
        return lambda returns: loss_and_gradients(returns)[index]

    for returns, index, expected, hint in (
        ([3.0, 1.0], 1, [-1.0, 0.0], "the gradient of the policy. Check sign and mean."),
        ([3.0, 1.0], 2, [-0.5, 0.0], "the gradient of the values. Who may change them?"),
        ([0.0, 1.0], 1, [0.5, 0.0], "an action that was worse than expected."),
        ([0.0, 1.0], 2, [0.25, 0.0], "values above the return."),
        (
            [3.0, 1.0],
            0,
            1.5,
            "the value of the loss, although its gradients are right. Check both terms.",
        ),
    ):
        message = _check(part(index), [Case((returns,), expected, hint)])
        if message != RIGHT:
            return message
    return RIGHT


def tune(answer: Answer) -> str:
    """ga3c: hill climbing over the numbers of predictors and trainers."""

    def measured(rates: dict[tuple[int, int], float]) -> Callable[[dict[str, int]], float]:
        return lambda counts: rates[counts["predictors"], counts["trainers"]]

    start = {"predictors": 1, "trainers": 1}
    more, less, trainer = ("predictors", 1), ("predictors", -1), ("trainers", 1)
    rates = {(1, 1): 10.0, (2, 1): 12.0, (3, 1): 8.0}
    cases = [
        ([more], {}, (2, 1), "a change that is faster."),
        ([more, more], {}, (2, 1), "a change that is slower. Where does the climb end?"),
        (
            [more, more, trainer],
            {(2, 2): 15.0, (3, 2): 5.0},
            (2, 2),
            "a change after a refused one. Which setting does it start from?",
        ),
        (
            [more, more, trainer],
            {(2, 2): 9.0, (3, 2): 9.0},
            (2, 1),
            "a change after a refused one. Which rate is it compared with?",
        ),
        ([trainer], {(1, 2): 10.0}, (1, 2), "a change that is exactly as fast."),
        ([less], {(0, 1): 99.0}, (1, 1), "a change to 0 predictors. Skip such a change."),
    ]

    def counts(*arguments: Any) -> Any:
        setting = answer(*arguments)
        return setting and (setting["predictors"], setting["trainers"])

    return _check(
        counts,
        [
            Case((dict(start), measured({**rates, **own}), changes), expected, hint)
            for changes, own, expected, hint in cases
        ],
    )


def clipped_objective(answer: Answer) -> str:
    """ppo: the clipped surrogate."""
    cases = [
        (1.1, 2.0, 2.2, "a ratio inside the clip."),
        (1.5, 2.0, 2.4, "a good action that is already much more likely."),
        (
            0.5,
            2.0,
            1.0,
            "a good action that became less likely. The objective must still correct it.",
        ),
        (0.5, -2.0, -1.6, "a bad action that is already much less likely."),
        (
            1.5,
            -2.0,
            -3.0,
            "a bad action that became more likely. The objective must still correct it.",
        ),
    ]
    return _check(
        answer,
        [
            Case((np.array([ratio]), np.array([advantage]), 0.2), [expected], hint)
            for ratio, advantage, expected, hint in cases
        ],
    )


def vtrace_targets(answer: Answer) -> str:
    """impala: V-trace's targets of the values."""
    rewards, values, same = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 1.0])
    cases = [
        Case(
            (same[:1], rewards[:1], values[:1], 6.0, 0.5, 1.0, 1.0),
            [4.0],
            "one step with ratio 1. Compare it with a one-step return.",
        ),
        Case(
            (same, rewards, values, 6.0, 0.5, 1.0, 1.0),
            [3.5, 5.0],
            "two steps with ratios of 1. Compare them with n-step returns.",
        ),
        Case(
            (0.5 * same[:1], rewards[:1], values[:1], 6.0, 0.5, 1.0, 1.0),
            [3.5],
            "a less likely action. What does its ratio weigh?",
        ),
        Case(
            (4.0 * same[:1], rewards[:1], values[:1], 6.0, 0.5, 2.0, 1.0),
            [5.0],
            "a more likely action. Which bound holds for its own error?",
        ),
        Case(
            (np.array([4.0, 1.0]), rewards, values, 6.0, 0.5, 2.0, 1.0),
            [3.5, 5.0],
            "the trace behind a more likely action. Which bound holds for what follows?",
        ),
        Case(
            (np.array([0.5, 0.5]), rewards, values, 6.0, 0.5, 1.0, 1.0),
            [3.125, 4.5],
            "two less likely actions. Whose ratio lets the second error reach the first?",
        ),
    ]
    return _check(answer, cases)


def forward_passes(answer: Answer) -> str:
    """seed_rl: when an inference server starts forward passes."""
    cases = [
        Case(
            ([0.0, 1.0], 2, 5.0), [(1.0, 2)], "enough requests. When is there nothing to wait for?"
        ),
        Case(([0.0], 2, 5.0), [(5.0, 1)], "a single request. How long may it wait?"),
        Case(
            ([0.0, 4.0, 20.0], 3, 5.0),
            [(5.0, 2), (25.0, 1)],
            "two requests that are too few. Which of them has waited longer?",
        ),
        Case(
            ([0.0, 7.0], 2, 5.0),
            [(5.0, 1), (12.0, 1)],
            "a request after a pass. Who still waits at that time?",
        ),
        Case(
            ([0.0, 1.0, 2.0, 3.0, 4.0], 2, 5.0),
            [(1.0, 2), (3.0, 2), (9.0, 1)],
            "five requests in a row.",
        ),
    ]
    return _check(lambda *arguments: _pairs(answer(*arguments)), cases)


def seconds_per_round(answer: Answer) -> str:
    """sample_factory: time of one step of all environments with one group and with two."""
    cases = [
        Case((4.0, 1.0, 1), 5.0, "one group. What happens while it waits?"),
        Case((4.0, 1.0, 2), 4.0, "two groups with fast inference. Which time is hidden?"),
        Case((4.0, 2.0, 2), 4.0, "two groups, with inference as long as stepping one of them."),
        Case(
            (4.0, 3.0, 2), 6.0, "two groups with slow inference. Which of the two is always busy?"
        ),
        Case((2.0, 6.0, 2), 12.0, "two groups with very slow inference. Count the forward passes."),
    ]
    return _check(answer, cases)


def pfsp(answer: Answer) -> str:
    """league: how often each frozen player is met."""
    cases = [
        Case((np.array([0.5, 0.5]),), [0.5, 0.5], "equal opponents. Chances add up to 1."),
        Case((np.array([1.0, 0.5]),), [0.0, 1.0], "an opponent that is always beaten."),
        Case(
            (np.array([0.0, 0.5]),),
            [0.8, 0.2],
            "a strong and an even opponent. How much more often should the strong one be met?",
        ),
        Case(
            (np.array([1.0, 1.0, 1.0]),),
            [1 / 3, 1 / 3, 1 / 3],
            "a pool in which all are beaten. Which chances are fair then?",
        ),
    ]
    return _check(answer, cases)


def _check(answer: Answer, cases: list[Case]) -> str:
    """RIGHT, or the hint of the first case that fails."""
    for arguments, expected, hint in cases:
        try:
            got = answer(*arguments)
        except NotImplementedError:
            return "Not yet: write your code in place of `raise NotImplementedError`."
        except Exception as error:
            return f"Not yet: your function raised {type(error).__name__}: {error}."
        if got is None:
            return "Not yet: your function returned None; does it end with `return`?"
        if not _same(got, expected):
            return f"Not yet: wrong for {hint}"
    return RIGHT


def _same(got: Any, expected: Any) -> bool:
    """Whether numbers, arrays, or tuples and lists of tuples of them are equal but for rounding."""
    if isinstance(expected, tuple):
        return len(got) == len(expected) and all(map(_same, got, expected))
    try:
        array = np.asarray(got, np.float64)
    except (TypeError, ValueError):
        return False
    wanted = np.asarray(expected, np.float64)
    return array.shape == wanted.shape and bool(np.allclose(array, wanted, atol=1e-6))


def _pairs(passes: Any) -> Any:
    return passes if passes is None else [tuple(each) for each in passes]
