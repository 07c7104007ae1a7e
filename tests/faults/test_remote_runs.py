# SPDX-License-Identifier: Apache-2.0
"""Runs in an S3 bucket: no committed checkpoint is ever lost, whatever the store and the machine
do, and the same command continues the run on an empty machine."""

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import left_after, start, wait_for_training
from object_store import ENVIRONMENT, FAULTS, SECRET, FlakyProxy, s3_server
from s3fs import S3FileSystem

import veldt
from veldt.cli import main as cli
from veldt.dashboard.reading import RunReader
from veldt.remote.download import refresh_files
from veldt.remote.location import local_copy, local_run
from veldt.remote.store import RemoteStore
from veldt.remote.upload import Commit, RunUploader, commits_in

pytestmark = pytest.mark.slow

STEPS = 4000
SMALL = (
    *("--env", "faulty_environments:leisurely_cart_pole", "--backend", "serial"),
    *("--num-actors", "1", "--envs-per-actor", "1", "--network-options", "hidden_sizes=16"),
    *("--evaluation-episodes", "0", "--checkpoint-options", "env_steps=500"),
)


@pytest.fixture(scope="module")
def server():
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(server, monkeypatch):
    flaky = FlakyProxy(server)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": flaky.address}.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # of another address
    yield flaky
    flaky.close()


@pytest.fixture
def url(request):
    return f"s3://bucket/{request.node.name}"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)`: from now on this is another machine, with an empty disk."""

    def become(name: str) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return tmp_path / name

    become("first")
    return become


def train(url: str, *words: str, steps: int = STEPS) -> int:
    common = ("--run-dir", url, "--total-env-steps", str(steps), "--quiet")
    return cli.main(["train", "impala", *SMALL, *common, *words])


def committed(url: str) -> list[Commit]:
    return commits_in(RemoteStore(url).listing(), "checkpoints")


def result(url: str) -> veldt.RunResult:
    return veldt.RunResult.load(local_copy(url) / "result.json")


def stderr_of(capsys) -> str:
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights that the run must end with, however often it was interrupted."""
    path = tmp_path_factory.mktemp("local") / "run"
    assert train(str(path)) == 0
    return veldt.RunResult.load(path / "result.json").parameters_sha256


def test_a_run_continues_and_is_used_on_other_machines(proxy, url, machine, capsys, tmp_path):
    assert train(url, steps=1000) == 0
    assert newest_step(url) == 1000
    machine("second")
    assert train(url, steps=2000) == 0
    assert result(url).env_steps == 2000
    kept, newest = [commit.step for commit in committed(url)]
    assert (newest, kept) >= (2000, 1000)
    machine("third")
    assert cli.main(["evaluate", url, "--episodes", "2"]) == 0
    assert "after 2,000 env steps" in capsys.readouterr().out
    assert veldt.load(url, checkpoint=kept).env_steps == kept
    assert cli.main(["resume", url, "--seed", "3"]) == 2
    assert "seed cannot change" in stderr_of(capsys)
    assert cli.main(["resume", url, "--total-env-steps", "2500"]) == 0
    assert committed(url)[-1].step == 2500
    holders = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in holders if SECRET.encode() in path.read_bytes()]


def test_the_same_command_again_changes_nothing_unless_the_store_was_emptied(
    proxy, url, machine, capsys
):
    assert train(url, steps=500) == 0
    before = result(url)
    machine("second")
    assert train(url, steps=500) == 0
    assert result(url) == before
    store = RemoteStore(url)
    store.remove(store.listing())
    assert train(url, steps=500) == 0
    assert "it is moved to" in stderr_of(capsys)
    assert newest_step(url) == 500


def newest_step(url: str) -> int:
    return max((commit.step for commit in committed(url)), default=0)


def wait_for_a_commit(url: str, after: int, process) -> None:
    deadline = time.monotonic() + 100
    while newest_step(url) <= after and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def first_env_steps(home: Path, since: float) -> int:
    """Env steps in the first line of metrics written since then; STEPS if no work was left."""
    lines = map(json.loads, next(home.rglob("metrics.jsonl")).read_text().splitlines())
    return next((line["env_steps"] for line in lines if line["time"] >= since), STEPS)


@pytest.mark.timeout(400)
def test_kills_on_a_flaky_store_lose_nothing_that_was_committed(
    proxy, server, url, machine, tmp_path, undisturbed, monkeypatch
):
    """kill -9 of everything at random moments, each time followed by the same command on an empty
    machine: it continues from the newest committed checkpoint and ends with the same bits."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)  # for this process
    S3FileSystem.clear_instance_cache()
    proxy.faults, proxy.rate = FAULTS, 0.15
    chance, kills = random.Random(2), 2
    words = ("train", "impala", *SMALL, "--run-dir", url, "--total-env-steps", str(STEPS))
    for life in range(kills + 1):
        home, known, began = machine(f"machine-{life}"), newest_step(url), time.time()
        with monkeypatch.context() as disturbed:
            disturbed.setenv("AWS_ENDPOINT_URL", proxy.address)
            process = start(tmp_path, *words)
        if life < kills:
            wait_for_a_commit(url, known, process)
            time.sleep(chance.uniform(0.0, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            assert not left_after(process.pid)
        else:
            _, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
        assert newest_step(url) >= known
        assert first_env_steps(home, began) >= known
    assert result(url).parameters_sha256 == undisturbed
    assert newest_step(url) == STEPS
    assert sum(proxy.counts.values()) > 10


def test_a_dead_store_costs_neither_the_run_nor_the_end(proxy, url, machine, capsys, monkeypatch):
    assert train(url, steps=500) == 0
    proxy.faults, proxy.rate = ("hang",), 1.0
    began = time.monotonic()
    machine("second")
    monkeypatch.setenv("VELDT_STORE_SECONDS", "1")
    assert train(url, steps=1000) == 2
    assert "could not list files (TimeoutError: no answer in 1 s)" in stderr_of(capsys)
    assert time.monotonic() - began < 30  # a slow machine; the bound is a second per call

    machine("first")
    proxy.faults = ()
    hang_after_the_start(proxy)
    began = time.monotonic()
    monkeypatch.setenv("VELDT_STORE_SECONDS", "2")
    assert train(url, steps=3000) == 1
    lines = stderr_of(capsys).splitlines()
    assert time.monotonic() - began < 60  # training included
    assert [line.partition(": ")[2].split(" ")[0] for line in lines] == ["upload:", url]
    assert "has the checkpoint of 500 env steps and not the end of the run after 2 s" in lines[1]
    assert result(url).env_steps == 3000

    proxy.faults = ()
    assert newest_step(url) == 500
    assert train(url, steps=3000) == 0  # there is nothing left to train: it is uploaded
    assert newest_step(url) == 3000


def hang_after_the_start(proxy: FlakyProxy) -> None:
    """Let the requests of the start through: the last one is the listing after owner.json."""
    handle = proxy._handle
    seen: list[str] = []

    def watch(request) -> None:
        handle(request)
        seen.append(request.command)
        if seen[-2:] == ["PUT", "GET"]:
            proxy.faults, proxy.rate, proxy._handle = ("hang",), 1.0, handle

    proxy._handle = watch


def test_a_damaged_checkpoint_is_left_out_by_name(proxy, url, machine, capsys):
    assert train(url, steps=500) == train(url, steps=1000) == 0
    store, newest = RemoteStore(url), committed(url)[-1]
    name = next(name for name in store.listing(newest.prefix) if "learner" in name)
    store.write(name, b"\0" * store.listing(name)[name])
    machine("second")
    assert cli.main(["evaluate", url, "--episodes", "1"]) == 0
    out, err = capsys.readouterr()
    assert "after 500 env steps" in out
    assert f"damaged checkpoint, which is left out: {newest.name}: " in err


def test_a_later_process_takes_over_the_run(proxy, url, machine, tmp_path):
    assert train(url, steps=500) == 0
    lines: list[str] = []
    first = RunUploader(RemoteStore(url), local_copy(url), 2, lines.append)
    first.begin()
    assert first.on_progress({}) is False
    second = RunUploader(RemoteStore(url), local_copy(url), 2, lines.append)
    second.begin()
    with pytest.raises(veldt.UploadFailure, match=r"was taken over by \S+, process \d+; this run"):
        first.finish()
    assert first.on_progress({}) is True
    second.finish()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("s3://me:password@bucket/a", "must not carry a user or a password"),
        ("s3://", "names no folder"),
        ("nowhere://bucket/a", "s3://, gs:// and file:// are known"),
        ("s3://no-such-bucket/a", "no-such-bucket/a could not write owner.json"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(proxy, machine, capsys, given, words):
    assert train(given) == 2
    err = stderr_of(capsys)
    assert words in err
    assert "password" not in err.replace("a password", "")
    assert err.count("\n") == 1


def test_an_existing_run_on_this_machine_is_resumed_or_begun_anew(tmp_path, capsys):
    path = tmp_path / "run"
    assert train(str(path), steps=500) == 0
    assert train(str(path), "--learning-rate", "0.5", steps=1000) == 2
    message = r"holds a run with learning_rate [\d.]+, not 0.5; give the same"
    assert re.search(message, stderr_of(capsys))
    assert train(str(path), steps=1000) == 0
    assert veldt.RunResult.load(path / "result.json").env_steps == 1000
    shutil.rmtree(path / "checkpoints")
    assert train(str(path), steps=1000) == 0
    assert "left no checkpoint; it begins anew" in stderr_of(capsys)


def test_a_signalled_run_is_whole_in_its_store(tmp_path, machine):
    """Budget without end, checkpoints a minute apart: what is committed is the last checkpoint."""
    url = f"file://{tmp_path}/store/run"
    words = ("--run-dir", url, "--total-env-steps", "1e9", "--checkpoint-options", "env_steps=1e8")
    process = start(tmp_path, "train", "impala", *SMALL, *words)
    local = local_copy(url)
    wait_for_training(local, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert result(url).stopped_by == "interrupt"
    assert newest_step(url) == result(url).env_steps


def test_a_page_elsewhere_shows_the_run_as_it_goes_on(tmp_path, machine):
    url = f"file://{tmp_path}/store/run"
    assert train(url, steps=500) == 0
    copy = local_run(url)
    page = RunReader(copy)
    assert page.read().status["env_steps"] == 500
    assert train(url, steps=1000) == 0
    refresh_files(RemoteStore(url), copy)
    assert page.read().status["env_steps"] == 1000
    assert page.read().state == "ended"
