# SPDX-License-Identifier: Apache-2.0
"""The recipes of deploy/: the Slurm script's body with stand-ins for what a cluster has, and the
manifests against the fields that KubeRay's types have."""

from __future__ import annotations

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


CONTAINER = {"name!": str, "image": str, "envFrom": list, "resources": dict, "volumeMounts": list}
POD = {"terminationGracePeriodSeconds": int, "containers!": [CONTAINER], "volumes": list}
TEMPLATE = {"metadata": dict, "spec!": POD}
HEAD = {"serviceType": str, "enableIngress": bool, "rayStartParams": dict, "template!": TEMPLATE}
WORKERS = {
    "groupName!": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "numOfHosts": int,
    "rayStartParams": dict,
    "template!": TEMPLATE,
}
CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": str},
    "enableInTreeAutoscaling": bool,
    "suspend": bool,
    "headGroupSpec!": HEAD,
    "workerGroupSpecs": [WORKERS],
}
JOB = {
    "entrypoint": str,
    "submissionMode": str,
    "backoffLimit": int,
    "activeDeadlineSeconds": int,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "runtimeEnvYAML": str,
    "rayClusterSpec": CLUSTER,
}
"""Fields of `ray.io/v1` as KubeRay's raycluster_types.go and rayjob_types.go have them, and of pods
as Kubernetes has them, as far as a recipe may use them; "!" marks those that must be there."""


def check(value, schema, where: str) -> None:
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for number, entry in enumerate(value):
            check(entry, schema[0], f"{where}[{number}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        fields = {name.rstrip("!"): kind for name, kind in schema.items()}
        assert set(value) <= set(fields), f"{where} has unknown fields"
        assert {name[:-1] for name in schema if name.endswith("!")} <= set(value), where
        for name, entry in value.items():
            check(entry, fields[name], f"{where}.{name}")
    else:
        assert type(value) is schema, where
    if where.endswith("rayStartParams"):
        assert all(isinstance(entry, str) for entry in value.values()), where


@pytest.mark.parametrize(
    ("name", "kind", "schema"),
    [("raycluster.yaml", "RayCluster", CLUSTER), ("rayjob.yaml", "RayJob", JOB)],
)
def test_manifests_have_the_fields_that_kuberay_knows(name, kind, schema):
    manifest = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    check(manifest["spec"], schema, kind)
    cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    assert cluster["authOptions"]["mode"] in ("token", "disabled")


def test_the_commands_in_the_recipes_are_understood():
    manifest = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text(encoding="utf-8"))
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert words[:2] == ["veldt", "train"]
    assert run_parser("train", words[2]).parse(words[2:])["backend"] == "ray"
    script = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    default = script.partition("VELDT_TRAIN:-")[2].partition("}")[0].split()
    assert run_parser("train", default[0]).parse(default)["backend"] == "ray"
