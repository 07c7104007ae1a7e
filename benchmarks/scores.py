# SPDX-License-Identifier: Apache-2.0
"""Steps and seconds to solve small tasks with defaults, beside Stable-Baselines3: the scoreboard.

Every run is `veldt train ARCHITECTURE --env ENV` with a target and a limit of seconds, or a number
of steps, and no other option but what the task itself needs. A finished run is a line of
benchmarks/results/scores.jsonl and is not repeated, so a call goes on where the last one was
interrupted; runs of another machine are kept and not counted. The summary goes to
benchmarks/results/scores.json, and `python docs/generate.py --readme` puts it into the docs.

python benchmarks/scores.py --seeds 0 1 2 3 4
python benchmarks/scores.py --only CartPole-v1 "veldt impala" --jobs 8 --cores 2
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import scores_report
import scores_summary
from scores_tasks import TASKS, Task

from veldt.telemetry.log_files import metric_rows

PEER_SCRIPT = measuring.ROOT / "benchmarks" / "peers" / "score_sb3.py"
_GRACE_SECONDS = 45.0  # to start, to evaluate at the end and to stop, beyond the limit: at most
_USUAL_GRACE_SECONDS = 12.0
_EVALUATING_SHARE = 0.3  # of the limit, at most: the peer's clock stands still while it evaluates
_CURVE_POINTS = 30
_RUNNING: set[subprocess.Popen[str]] = set()
Run = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """One run of the scoreboard."""

    task: Task
    contestant: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task.env, self.contestant, self.seed

    def words(self, run_dir: Path, max_seconds: float) -> list[str]:
        framework, name, *more = self.contestant.split()
        task, seed = self.task, str(self.seed)
        limits = ["--max-seconds", f"{max_seconds:g}", "--seed", seed]
        if framework == "sb3":
            words = [str(peer_python()), str(PEER_SCRIPT), name, "--env", task.env]
            return [*words, *self._end("--target", "--steps"), *limits]
        words = [sys.executable, "-m", "veldt", "train", name, "--env", task.env, *more]
        words += [*self._end("--target-return", "--total-env-steps"), *limits]
        return [*words, "--quiet", "--run-dir", str(run_dir)]

    def _end(self, target: str, steps: str) -> list[str]:
        if self.task.target is None:
            return [steps, str(self.task.steps)]
        return [target, f"{self.task.target:g}"]


def peer_python() -> Path:
    return measuring.ROOT / ".peers" / "sb3" / "bin" / "python"


def execute(wanted: Wanted, max_seconds: float, cores: list[int]) -> Run:
    """One run from start to end on `cores`. The loads tell what else was going on."""
    with tempfile.TemporaryDirectory(prefix="scores-") as directory:
        run_dir = Path(directory) / "run"
        words = wanted.words(run_dir, max_seconds)
        began, load = time.monotonic(), os.getloadavg()[0]
        is_peer = wanted.contestant.startswith("sb3")
        evaluating = _EVALUATING_SHARE * max_seconds if is_peer else 0.0
        code, out, err = _watched(words, max_seconds + evaluating + _GRACE_SECONDS, cores)
        run: Run = {"task": wanted.task.env, "contestant": wanted.contestant, "seed": wanted.seed}
        shown = [Path(word).name if word.startswith("/") else word for word in words]
        run |= {"target": wanted.task.target, "max_seconds": max_seconds, "cores": len(cores)}
        loads = {"load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)}
        run |= {"steps_asked": wanted.task.steps, **loads}
        run["command"] = " ".join(shown)
        if code != 0:
            return {**run, "error": f"exit code {code}: {err.strip()[-300:]}"}
        found = _of_peer(out) if is_peer else _of_veldt(run_dir)
        return {**run, **found, "process_seconds": time.monotonic() - began}


def _watched(words: list[str], limit_seconds: float, cores: list[int]) -> tuple[int, str, str]:
    found = [str(measuring.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(found)}
    process = subprocess.Popen(
        words,
        cwd=measuring.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    _RUNNING.add(process)
    try:
        out, err = process.communicate(timeout=limit_seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        return 124, "", f"still running after {limit_seconds:.0f} s"
    finally:  # nothing may go on beside the next run
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _RUNNING.discard(process)


def _of_peer(out: str) -> Run:
    return json.loads(out.splitlines()[-1])


def _of_veldt(run_dir: Path) -> Run:
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    rows = metric_rows(run_dir)
    every = max(1, len(rows) // _CURVE_POINTS)
    points = [(row.get("time"), row["env_steps"], row.get("return/mean_100")) for row in rows]
    names = ("seconds_to_target", "env_steps_to_target", "evaluation_return", "mean_return_100",
             "env_steps", "wall_seconds", "start_seconds", "updates", "chosen")  # fmt: skip
    began = rows[-1]["time"] - result["wall_seconds"] if rows else 0.0
    curve = [(round(at - began, 2), steps, value) for at, steps, value in points[::every]]
    return {
        "reached": bool(result["reached_target"]),
        **{name: result[name] for name in names},
        "curve": curve,
    }


def finished(path: Path, here: dict[str, Any] | None = None) -> list[Run]:
    """Runs of earlier calls, on this machine if one is given; a line that was cut off by a kill is
    no run."""
    runs = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            runs.append(json.loads(line))
        except ValueError:
            continue
    return [run for run in runs if here is None or _is_same(run["machine"], here)]


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("cpu", "python", "versions"))


def wanted_runs(given: argparse.Namespace) -> list[Wanted]:
    """The longest first, since one begun last would keep all waiting; those of a task seed by seed,
    so that what disturbs the machine for a while disturbs every contestant."""
    found = [
        Wanted(task, contestant, seed)
        for seed in given.seeds
        for task in TASKS
        for contestant in task.contestants
        if _is_asked_for(given, task.env, contestant)
    ]
    return sorted(found, key=lambda each: -each.task.max_seconds)


def _is_asked_for(given: argparse.Namespace, env: str, contestant: str) -> bool:
    tags = {env, contestant, contestant.split()[0], f"{env} {contestant}"}
    return (not given.only or bool(tags & set(given.only))) and not tags & set(given.leave_out)


def measure(given: argparse.Namespace, path: Path, here: dict[str, Any]) -> None:
    known = (run for run in finished(path, here) if not run.get("superseded"))
    earlier = [run for run in known if "error" not in run]
    done = {(run["task"], run["contestant"], run["seed"]) for run in earlier if not given.again}
    todo = [each for each in wanted_runs(given) if each.key not in done]
    if any(each.contestant.startswith("sb3") for each in todo) and not peer_python().exists():
        print("Stable-Baselines3 is not installed here and left out: make .peers/sb3/.installed")
        todo = [each for each in todo if not each.contestant.startswith("sb3")]
    waiting: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
    for each in todo:
        waiting.put(each)
    lock, ends_at = threading.Lock(), time.monotonic() + given.total_seconds
    is_over = threading.Event()

    def work(cores: list[int]) -> None:
        while True:
            try:
                each = waiting.get_nowait()
            except queue.Empty:
                return
            limit = min(given.max_seconds, each.task.max_seconds)
            if time.monotonic() + limit + _USUAL_GRACE_SECONDS > ends_at:
                continue  # a shorter one may still fit
            run = {**execute(each, limit, cores), "machine": here}
            if given.untimed:
                run["untimed"] = True
            with lock:
                if is_over.is_set():
                    return
                _append(path, run)
                print(
                    f"seed {each.seed}  {each.task.env:26} {scores_report.in_words(run)}",
                    flush=True,
                )

    workers = [
        threading.Thread(target=work, args=(cores,), daemon=True) for cores in _shares(given)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:  # after Ctrl-C or SIGTERM, which the main thread alone hears of
        is_over.set()
        for process in list(_RUNNING):
            _end(process)


def _append(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(measuring.plain(run)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _shares(given: argparse.Namespace) -> list[list[int]]:
    """The cores of each job: its own, so that runs beside each other do not slow each other."""
    cores = sorted(os.sched_getaffinity(0))
    if given.jobs * given.cores > len(cores):
        raise SystemExit(f"{given.jobs} jobs of {given.cores} cores need more than {len(cores)}")
    return [cores[job * given.cores :][: given.cores] for job in range(given.jobs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--only", nargs="+", help="environments, 'veldt', 'sb3', 'veldt ppo', ...")
    parser.add_argument("--leave-out", nargs="+", default=[], help="such words, or both in one")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--cores", type=int, default=2, help="of each run, its own")
    parser.add_argument("--max-seconds", type=float, default=1e6, help="of a run, if below its own")
    parser.add_argument(
        "--total-seconds", type=float, default=1e9, help="begin none that may not end"
    )
    parser.add_argument(
        "--untimed", action="store_true", help="other work goes on beside: seconds do not count"
    )
    parser.add_argument("--name", default="scores", help="of the files in benchmarks/results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    path = measuring.RESULTS / f"{given.name}.jsonl"
    here = measuring.machine()
    measure(given, path, here)
    document = scores_summary.summary(finished(path, here), [task.env for task in TASKS])
    measuring.save(given.name, document)
    for line in scores_report.text_lines(document):
        print(line)


if __name__ == "__main__":
    main()
