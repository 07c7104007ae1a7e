# SPDX-License-Identifier: Apache-2.0
"""The lag a run reports is the lag of the rows its learner received, counted again by hand."""

from pathlib import Path

import numpy as np
import pytest

import veldt
from veldt.architectures import impala
from veldt.roles.learner import Learner


class RecordingLearner(Learner):
    """Writes down, for each batch, its own version and the versions of the rows it was given."""

    def open(self, context):
        super().open(context)
        self._record = open(context.run_dir / "received.txt", "a", encoding="utf-8")  # noqa: SIM115

    def _learn(self, batch):
        rows = " ".join(str(version) for version in batch["parameter_version"][:-1].ravel())
        print(self._version, rows, file=self._record, flush=True)
        return super()._learn(batch)


@pytest.mark.parametrize("backend", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_impala_reports_the_lag_of_the_rows_it_received(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(impala, "Learner", RecordingLearner)
    result = veldt.train(
        "impala",
        env="CartPole-v1",
        backend=backend,
        num_actors=2,
        envs_per_actor=4,
        trajectory_steps=5,
        total_env_steps=4_000,
        evaluation_episodes=0,
        run_dir=str(tmp_path / "run"),
    )
    lags = []
    for line in Path(result.run_dir, "received.txt").read_text(encoding="utf-8").splitlines():
        version, *rows = (int(number) for number in line.split())
        lags += [version - row for row in rows]
    # The learner went on for a moment after the run's last look at its counters.
    histogram = np.array(result.policy_lag["histogram"])
    counted = lags[: histogram.sum()]
    assert np.array_equal(np.bincount(counted, minlength=histogram.size), histogram)
    assert result.policy_lag["max"] == max(counted) >= 1
    assert result.policy_lag["mean"] == pytest.approx(np.mean(counted))
