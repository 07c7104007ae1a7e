# SPDX-License-Identifier: Apache-2.0
"""Population-based training by the published rules, against a slow transcription of each."""

import math

import numpy as np
import pytest

from veldt.population.rules import ImpalaRule, SampleFactoryRule

DEFAULTS = np.array([3e-3, 0.01, 1.0])


def transcribed_sample_factory(member, objectives, values, random):
    """Step by step as the system's own controller does it: (parent, new values) or None."""
    pairs = sorted(zip(objectives, range(len(objectives)), strict=True), reverse=True)
    ranked = [policy for _, policy in pairs]
    number = math.ceil(0.3 * len(objectives))
    best, worst = ranked[:number], ranked[-number:]
    if member in best:
        return None
    parent = member
    if member in worst:
        candidate = best[random.integers(len(best))]
        delta = objectives[candidate] - objectives[member]
        if abs(delta) > 1e-6 and abs(delta / (objectives[candidate] + 1e-5)) > 0.1:
            parent = candidate
    new = []
    for value, default in zip(values[parent], DEFAULTS, strict=True):
        if member == 0 or random.random() > 0.15:
            new.append(value)
        elif value != default and random.random() < 0.01:
            new.append(default)
        else:
            amount = random.uniform(1.1, 1.5)
            new.append(value / amount if random.random() < 0.5 else value * amount)
    return parent, new


def transcribed_impala(member, objectives, values, random):
    others = [policy for policy in range(len(objectives)) if policy != member]
    other = others[random.integers(len(others))]
    parent = other if objectives[other] - objectives[member] > 0.05 else member
    mutates, shrinks = random.random(3) < 0.33, random.random(3) < 0.5
    new = []
    for value, changes, down in zip(values[parent], mutates, shrinks, strict=True):
        new.append(value if not changes else value / 1.2 if down else value * 1.2)
    return parent, new


@pytest.mark.parametrize(
    ("rule", "transcription"),
    [(SampleFactoryRule, transcribed_sample_factory), (ImpalaRule, transcribed_impala)],
)
def test_decisions_are_those_of_the_paper(rule, transcription):
    cases = np.random.default_rng(0)
    replaced = kept = left_alone = 0
    for case in range(2000):
        members = int(cases.integers(2, 9))
        objectives = cases.normal(size=members) * 10.0 ** cases.integers(-2, 3)
        values = DEFAULTS * cases.choice([0.5, 1.0, 2.0], size=(members, 3))
        member = int(cases.integers(members))
        decision = rule(DEFAULTS, np.random.default_rng(case)).decide(member, objectives, values)
        expected = transcription(member, objectives, values, np.random.default_rng(case))
        if expected is None:
            assert decision is None
            left_alone += 1
            continue
        assert decision.parent == expected[0]
        np.testing.assert_allclose(decision.hyperparameters, expected[1], rtol=1e-12)
        replaced += decision.parent != member
        kept += decision.parent == member
    assert min(replaced, kept) > 100, "both outcomes must have been compared"
    assert (left_alone > 100) == (rule is SampleFactoryRule)
