# SPDX-License-Identifier: Apache-2.0
"""The recipes of deploy/: the Slurm script with stand-ins for the programs of a cluster, and the
commands in the manifests."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import HERE, ROOT, wait_for_training

from veldt.cli.parsers import run_parser

pytestmark = pytest.mark.slow

DEPLOY = Path(ROOT) / "deploy"
STAND_INS = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    # What follows "--" is run on the head; no cluster is started.
    "ray": 'while [ "$1" != -- ]; do shift; done; shift; "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> requeued; fi',
    "veldt": f'exec {sys.executable} -m veldt "$@"',
}


@pytest.fixture
def cluster(tmp_path):
    """An environment in which the programs of a Slurm cluster are stand-ins."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    own = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{HERE}",
        "SLURM_JOB_ID": "17",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": "node",
        "RUN_DIR": str(tmp_path / "run"),
    }
    return {**os.environ, **own}


def job(folder: Path, cluster: dict[str, str], env_steps: int) -> subprocess.Popen:
    words = "impala --env CartPole-v1 --backend serial --evaluation-episodes 0 --quiet"
    train = f"{words} --total-env-steps {env_steps}"
    return subprocess.Popen(
        ["bash", DEPLOY / "slurm.sbatch"],
        cwd=folder,
        env={**cluster, "VELDT_TRAIN": train},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_signalled_slurm_job_saves_itself_and_is_queued_again(tmp_path, cluster):
    first = job(tmp_path, cluster, 10**9)
    wait_for_training(tmp_path / "run", first)
    os.kill(first.pid, signal.SIGTERM)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"
    before = json.loads((tmp_path / "run" / "result.json").read_text())
    assert before["stopped_by"] == "interrupt"

    second = job(tmp_path, cluster, before["env_steps"] + 5000)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    after = json.loads((tmp_path / "run" / "result.json").read_text())
    assert after["stopped_by"] == "env_steps"
    assert after["updates"] > before["updates"]
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"  # it has ended by itself


def test_the_commands_in_the_recipes_are_understood():
    for name, kind in (("raycluster.yaml", "RayCluster"), ("rayjob.yaml", "RayJob")):
        manifest = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
        assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
        cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
        assert cluster["authOptions"]["mode"] == "token"
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:2] == ["veldt", "train"]
    assert run_parser("train", words[2]).parse(words[2:])["backend"] == "ray"
    script = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    default = script.partition("VELDT_TRAIN:-")[2].partition("}")[0].split()
    assert run_parser("train", default[0]).parse(default)["backend"] == "ray"
