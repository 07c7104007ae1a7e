# SPDX-License-Identifier: Apache-2.0
"""veldt export: every head and space, as ONNX and for torch, acts as the policy does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from policies import CASES, policy_of

import veldt
from veldt.cli import main as cli
from veldt.policy.export import export

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

EXAMPLE = Path(__file__).parents[2] / "examples" / "play_onnx.py"
BY_ITSELF = """
import sys
for name in ("torch", "veldt", "gymnasium", "onnx", "onnxscript"):
    sys.modules[name] = None
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


FOR_TORCH = ("nested", "masked", "tanh", "q", "r2d2", "dpg", "sac", "td3")
"""Every head; what is written as ONNX goes through the same tracing."""


@pytest.mark.parametrize(
    ("name", "format"), [*((name, "onnx") for name in CASES), *((n, "torch") for n in FOR_TORCH)]
)
def test_every_policy_acts_alike_on_1000_observations(tmp_path, name, format):
    policy = policy_of(name)
    done = export(policy, format, tmp_path / "file", "0")
    assert done.observations == 1_000
    assert done.checked_with == {"onnx": "onnxruntime", "torch": "torch"}[format]


def test_the_command_writes_a_file_that_knows_what_it_is(short_run, tmp_path, capsys):
    out = tmp_path / "pole.onnx"
    assert cli.main(["export", str(short_run), "--out", str(out)]) == 0
    assert "actions equal on 1,000 observations (onnxruntime)" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["veldt"])
    assert metadata["veldt_version"] == veldt.__version__
    assert metadata["action_space"] == {"type": "Discrete", "n": 2, "start": 0}
    assert metadata["inputs"] == {"observation": {"shape": [4], "dtype": "float32"}}
    policy, rows = veldt.load(short_run), np.random.default_rng(0).standard_normal((3, 4))
    [action] = session.run(["action"], {"observation": rows.astype(np.float32)})
    assert action.tolist() == policy.act(rows).tolist()


def test_what_was_exported_for_torch_is_loaded_by_torch_alone(short_run, tmp_path):
    done = veldt.export(short_run, tmp_path / "pole.pt2", "torch", checkpoint="last")
    assert done.observations == 1_000
    files = {"veldt.json": ""}
    module = torch.export.load(done.path, extra_files=files).module()
    assert json.loads(files["veldt.json"])["env"] == "CartPole-v1"
    assert module({"observation": torch.zeros(5, 4)})["action"].shape == (5,)


def test_the_example_needs_neither_torch_nor_veldt(short_run, tmp_path):
    out = tmp_path / "pole.onnx"
    veldt.export(short_run, out)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", BY_ITSELF, str(EXAMPLE), str(out)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "10 episodes of" in done.stdout


def test_a_policy_with_a_memory_is_played_by_the_example(tmp_path):
    import runpy

    policy = policy_of("gru")
    export(policy, "onnx", tmp_path / "gru.onnx", "0", 50)
    player = runpy.run_path(str(EXAMPLE))["Policy"](str(tmp_path / "gru.onnx"))
    state, random = policy.initial_state(), np.random.default_rng(0)
    for _ in range(5):
        observation, reward = random.standard_normal(4).astype(np.float32), random.random()
        ours = policy.act(observation, state, reward=reward)
        theirs = player.act(observation=observation, reward=reward)
        np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_a_difference_is_noticed_and_nothing_is_kept(tmp_path, monkeypatch):
    policy = policy_of("tanh")
    right = type(policy).act
    monkeypatch.setattr(type(policy), "act", lambda *a, **k: right(*a, **k) + 0.01)
    with pytest.raises(veldt.ConfigurationError, match="acts otherwise"):
        export(policy, "torch", tmp_path / "file", "0", 20)
    assert not list(tmp_path.iterdir())
