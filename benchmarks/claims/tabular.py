# SPDX-License-Identifier: Apache-2.0
"""Claims about algebra, decided exactly on small tables: no network, no noise, no clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from veldt.losses.corrections import corrected_targets
from veldt.losses.returns import Rows
from veldt.losses.vtrace import Traces

from .claim import Claim, Criterion, Row, settings, values
from .figures import bars, lines

_SWEEPS = 4000
_VTRACE = "vtrace"


@dataclass(frozen=True)
class Chain:
    """A random walk on a ring of states with fixed policies: `target` is learned about while
    `behaviour` acts. Moves are certain, so that expectations are sums over few action sequences."""

    reward: np.ndarray
    successor: np.ndarray
    target: np.ndarray
    behaviour: np.ndarray

    @staticmethod
    def drawn(seed: int, states: int, actions: int = 2) -> Chain:
        random = np.random.default_rng(seed)
        policies = random.dirichlet(np.ones(actions), size=(2, states))
        successor = random.integers(states, size=(states, actions))
        return Chain(random.normal(size=(states, actions)), successor, policies[0], policies[1])

    def value(self, policy: np.ndarray, gamma: float) -> np.ndarray:
        """V of `policy`, from its linear equations."""
        states = len(self.reward)
        moves = np.zeros((states, states))
        for state, row in enumerate(self.successor):
            np.add.at(moves[state], row, policy[state])
        return np.linalg.solve(np.eye(states) - gamma * moves, (policy * self.reward).sum(axis=1))

    def clipped_policy(self, rho_bar: float) -> np.ndarray:
        """pi_rho of the IMPALA paper: what V-trace evaluates."""
        weights = np.minimum(rho_bar * self.behaviour, self.target)
        return weights / weights.sum(axis=1, keepdims=True)


def fixed_point(chain: Chain, correction: str, gamma: float, rho_bar: float, steps: int) -> Any:
    """What repeated expected updates with one correction's targets converge to."""
    states, actions = chain.reward.shape
    plans = np.array(list(itertools.product(range(actions), repeat=steps)))
    visited = np.empty((steps + 1, states, len(plans)), np.int64)
    visited[0] = np.arange(states)[:, None]
    for step in range(steps):
        visited[step + 1] = chain.successor[visited[step], plans[:, step]]
    taken = np.broadcast_to(plans.T[:, None, :], (steps, states, len(plans)))
    columns = (steps, states * len(plans))
    mu, pi, reward = (
        torch.from_numpy(table[visited[:-1], taken].reshape(columns))
        for table in (chain.behaviour, chain.target, chain.reward)
    )
    odds = mu.numpy().prod(axis=0).reshape(states, len(plans))
    never = torch.zeros(columns, dtype=torch.bool)
    value = np.zeros(states)
    for _ in range(_SWEEPS):
        now, later = (
            torch.from_numpy(value[rows].reshape(columns)) for rows in (visited[:-1], visited[1:])
        )
        moved = Rows(reward, now, later, never, never, never)
        traces = Traces(gamma, rho_bar=rho_bar, c_bar=min(1.0, rho_bar))
        targets = corrected_targets(correction, (pi / mu).log(), moved, traces).vs[0]
        updated = (odds * targets.numpy().reshape(odds.shape)).sum(axis=1)
        if np.abs(updated - value).max() < 1e-13:
            break
        value = updated
    return value


@dataclass(frozen=True)
class _TrajectoryClaim(Claim):
    """Expectations over trajectories, without a run."""

    is_timed = False

    steps: int = 4
    """Rows of a trajectory."""


@dataclass(frozen=True)
class VtraceFixedPoint(_TrajectoryClaim):
    """Where each correction's targets lead, on tables whose answer is known."""

    name = "vtrace_fixed_point"
    statement = "V-trace's fixed point is the value of pi_rho, between those of mu and pi."
    paper = "IMPALA (Espeholt et al., 2018), theorem 1"
    rule = (
        "On random chains the expected V-trace update converges to V of pi_rho, computed from its"
        " linear equations: the largest distance of all chains is below 1e-6. Without a correction"
        " it is further from V of pi than V-trace is: the interval of the difference over chains"
        " lies above 0."
    )
    caption = (
        "Largest distance from the value of pi to what the updates converge to, by correction."
    )
    factors = settings(correction=[_VTRACE, "one_step", "none"])
    quick_settings = settings(seeds=3)

    states: int = 6
    """States of a chain."""
    gamma: float = 0.9
    """Discount."""
    rho_bar: float = 1.0
    """Bound of the importance weights."""
    seeds: int = 24

    def measure(self, case: Row) -> Row:
        chain = Chain.drawn(case["seed"], self.states)
        found = fixed_point(chain, case["correction"], self.gamma, self.rho_bar, self.steps)
        exact = chain.value(chain.clipped_policy(self.rho_bar), self.gamma)
        return {
            "from_clipped": float(np.abs(found - exact).max()),
            "from_target": float(np.abs(found - chain.value(chain.target, self.gamma)).max()),
        }

    def judge(self, rows: list[Row]) -> list[Criterion]:
        error = values(rows, "from_clipped", correction=_VTRACE).max()
        gain = values(rows, "from_target", correction="none") - values(
            rows, "from_target", correction=_VTRACE
        )
        what = "largest distance of V-trace's fixed point from V of pi_rho"
        return [
            Criterion.exactly(what, float(error), 1e-6, above=False),
            Criterion.over_seeds("distance to V of pi: no correction minus V-trace", gain, 0.0),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        names = [kind["correction"] for kind in self.kinds()]
        groups = {name: values(rows, "from_target", correction=name) for name in names}
        bars(figure.subplots(), groups, "distance from the value of pi")


@dataclass(frozen=True)
class ImportanceVariance(_TrajectoryClaim):
    """Products of importance ratios while a policy drifts away from the one that acted."""

    name = "importance_variance"
    statement = "Products of importance ratios have a large variance; clipped ones do not."
    paper = "IMPALA (Espeholt et al., 2018), after Precup et al. (2000)"
    rule = (
        "The variance of the product of ratios over a trajectory, relative to its squared mean,"
        " grows at least tenfold from the smallest to the largest lag, and at the largest lag that"
        " of the product of ratios clipped at 1 is less than a tenth of it: the intervals over"
        " seeds lie above 10 and below 0.1 (policies that drift at random)."
    )
    caption = (
        "Relative variance of the product of ratios over the lag, plain and clipped at 1; log axes."
    )
    factors = settings(lag="lags")
    quick_settings = settings(seeds=2, draws=500)

    lags: tuple[int, ...] = (1, 3, 10, 30, 100)
    """Updates between acting and learning, comma separated."""
    steps: int = 20
    actions: int = 6
    """Actions of a state."""
    drift: float = 0.03
    """Deviation of a logit's change by one update."""
    draws: int = 20_000
    """Trajectories drawn."""
    seeds: int = 12

    def measure(self, case: Row) -> Row:
        random = np.random.default_rng([case["seed"], case["lag"]])
        shape = (self.steps, self.actions)
        before = random.normal(size=shape)
        moved = self.drift * np.sqrt(case["lag"]) * random.normal(size=shape)
        mu, pi = (
            np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (before, before + moved)
        )
        noise = random.gumbel(size=(self.draws, *shape))
        chosen = (np.log(mu) + noise).argmax(axis=2)
        ratios = (pi / mu)[np.arange(self.steps), chosen]
        clipped = np.minimum(ratios, 1.0)
        products = {"plain": ratios.prod(axis=1), "clipped": clipped.prod(axis=1)}
        return {name: float(x.var() / x.mean() ** 2) for name, x in products.items()}

    def judge(self, rows: list[Row]) -> list[Criterion]:
        first, last = self.lags[0], self.lags[-1]
        growth = values(rows, "plain", lag=last) / values(rows, "plain", lag=first)
        share = values(rows, "clipped", lag=last) / values(rows, "plain", lag=last)
        return [
            Criterion.over_seeds(f"variance at {last} updates over that at {first}", growth, 10.0),
            Criterion.over_seeds(
                f"clipped over plain variance at {last} updates", share, 0.1, above=False
            ),
        ]

    def draw(self, rows: list[Row], figure: Any) -> None:
        axis = figure.subplots()
        groups = {
            name: np.array([values(rows, name, lag=lag) for lag in self.lags])
            for name in ("plain", "clipped")
        }
        lines(axis, self.lags, groups, ("lag in updates", "relative variance of the product"))
        axis.set_xscale("log")
        axis.set_yscale("log")
