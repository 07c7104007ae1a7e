# SPDX-License-Identifier: Apache-2.0
"""A run goes on with another number of actors than it was begun with: for every architecture, with
all that was counted and learned, and with a line about what could not be carried over."""

from __future__ import annotations

import json

import numpy as np
import pytest
import test_exact_resume as exact

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.checkpoints.store import CheckpointStore
from veldt.run.checkpoints import weights_in

pytestmark = pytest.mark.slow

SMALL = {**exact.SMALL, "checkpoint_options": {"env_steps": 10_000}}
CASES = {name: exact.OWN.get(name, {}) for name in ARCHITECTURES if name != "dqn"}
CASES["league"] = {"freeze_env_steps": 60, "max_frozen": 6}  # one player, so one actor is enough
CASES["sac"] = CASES["td3"] = {**exact.REPLAY, "wrappers": {"time_limit": 20}}
CASES["r2d2"] = {**exact.SEQUENCES, "burn_in_steps": 4, "unroll_steps": 4, "trajectory_steps": 4}
CASES["gorila, global"] = {**exact.REPLAY, "replay": "global"}
CASES["impala, recurrent"] = {
    "recurrent": "gru",
    "network_options": {"hidden_sizes": (16,), "recurrent_size": 8},
}
CASES["a3c, own statistics"] = {"shared_statistics": False}


def notes(run_dir) -> list[str]:
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [text for text in (json.loads(line)["text"] for line in lines) if "resumed" in text]


@pytest.mark.parametrize("case", CASES)
def test_four_actors_become_one_and_four_again(case, tmp_path):
    architecture = case.partition(",")[0]
    env = ARCHITECTURES[architecture].example_env
    options = {**SMALL, **CASES[case], "num_actors": 4}
    before = veldt.train(
        architecture, env=env, run_dir=str(tmp_path), total_env_steps=600, **options
    )
    for actors in (1, 4):
        store = CheckpointStore(tmp_path / "checkpoints")
        saved = weights_in(store.newest())
        after = veldt.resume(
            tmp_path, num_actors=actors, total_env_steps=before.env_steps + 300, quiet=True
        )
        refitted = weights_in(store.at(before.env_steps))
        assert refitted.version == saved.version
        assert np.array_equal(refitted.vector, saved.vector)
        assert before.env_steps + 300 <= after.env_steps < before.env_steps + 400
        assert after.updates > before.updates > 0
        assert after.episodes >= before.episodes > 0
        before = after
    assert len(notes(tmp_path)) == 2


def test_dqn_has_one_actor_and_says_so(tmp_path):
    small = {**SMALL, "run_dir": str(tmp_path), "total_env_steps": 100}
    veldt.train("dqn", env="CartPole-v1", **small)
    with pytest.raises(veldt.ConfigurationError, match="dqn has one actor"):
        veldt.resume(tmp_path, num_actors=4)


def test_what_a_lost_replay_held_is_named(tmp_path):
    options = {**SMALL, **exact.REPLAY, "run_dir": str(tmp_path)}
    veldt.train("gorila", env="CartPole-v1", num_actors=3, total_env_steps=300, **options)
    veldt.resume(tmp_path, num_actors=1, total_env_steps=400)
    veldt.resume(tmp_path, num_actors=2, total_env_steps=500)
    lost, empty = notes(tmp_path)
    assert lost.endswith(": the content of replay-1 is lost; the content of replay-2 is lost")
    assert empty.endswith(": replay-1 begins empty")
