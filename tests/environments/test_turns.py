# SPDX-License-Identifier: Apache-2.0
"""Groups of environments that take turns on one thread of ale-py or EnvPool."""

from __future__ import annotations

import numpy as np
import pytest

from veldt.environments import EnvironmentFactory

TIME_LIMIT = 12


@pytest.fixture(params=[("ale_py", "ALE/Pong-v5"), ("envpool", "envpool:Pong-v5")], ids="-".join)
def pong(request):
    module, name = request.param
    pytest.importorskip(module)
    return EnvironmentFactory(name, time_limit=TIME_LIMIT)


def test_groups_that_take_turns_play_what_one_vector_plays(pong):
    """Two groups of two on one thread against one vector of four with the same seed and actions."""
    factory = pong
    actions = np.random.default_rng(0).integers(0, 6, size=(40, 4))
    whole = factory.make(4, seed=5)
    whole.reset()
    expected = []
    for action in actions:
        shown = np.array(whole.observations["observation"])
        step = whole.step(action)
        answers = (np.array(step.reward), np.array(step.truncated), np.array(step.ignored))
        expected += [
            tuple(part[rows].tobytes() for part in (shown, *answers))
            for rows in (slice(0, 2), slice(2, 4))
        ]
    whole.close()

    groups = factory.make_groups(2, 2, seed=5)
    groups[0].reset()
    seen, sent = [], []
    for number, action in enumerate(actions.reshape(-1, 2)):
        group, following = groups[number % 2], groups[(number + 1) % 2]
        sent.append(group.observations["observation"].tobytes())
        group.send(action)
        if number == 0:
            following.reset()
            continue
        step = following.receive()
        answers = tuple(part.tobytes() for part in (step.reward, step.truncated, step.ignored))
        seen.append((sent.pop(0), *answers))
    groups[0].close()
    assert seen == expected[: len(seen)]
    assert len(seen) == len(expected) - 1


def test_groups_out_of_turn_are_refused(pong):
    first, second = pong.make_groups(2, 2, seed=5)
    first.reset()
    first.send(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match="out of order"):
        first.receive()  # what comes next is the second group's reset
    second.close()


def test_sample_factory_trains_on_envpool_groups(tmp_path):
    """Its two groups come from one pool: nothing is stepped in the receiving half."""
    pytest.importorskip("envpool")
    import veldt

    result = veldt.train(
        "sample_factory",
        env="envpool:CartPole-v1",
        backend="serial",
        num_actors=1,
        envs_per_actor=8,
        total_env_steps=2_000,
        evaluation_episodes=0,
        run_dir=str(tmp_path / "run"),
        quiet=True,
    )
    assert result.updates > 0
    assert result.env_steps >= 2_000
