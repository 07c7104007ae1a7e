# SPDX-License-Identifier: Apache-2.0
"""How runs that must learn are made: on serial, where a seed fixes every bit."""

import pytest

import veldt


@pytest.fixture
def train(tmp_path):
    """Trains with seed 1; with a target it must be reached."""

    def trained(architecture, env="CartPole-v1", **options):
        result = veldt.train(
            architecture, env, backend="serial", seed=1, run_dir=str(tmp_path / "run"), **options
        )
        assert result.reached_target or "target_return" not in options, result.evaluation_return
        return result

    return trained
