# SPDX-License-Identifier: Apache-2.0
"""Sample Factory on one GPU: trained steps/s as a share of what the environments alone can do.

python benchmarks/sample_factory_gpu.py --env ALE/Pong-v5 --network resnet --num-actors 15

Lent machines change their pace by a third within a minute. So the run and the ceiling (every core
stepping with random actions) take turns of a few seconds: whoever's turn it is not is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
from env_ceiling import Steppers

from veldt.telemetry.log_files import metric_rows

_START_LIMIT_SECONDS = 180.0
_SET_OUT_SECONDS = 2.0  # until what waited for a stopped process has been worked off


class PausableRun:
    """A `veldt train` in processes of its own."""

    def __init__(self, directory: Path, options: dict[str, Any], own: list[str]) -> None:
        self._run_dir = directory / "run"
        command = measuring.train_command("sample_factory", self._run_dir, options)
        self._words = open(directory / "words", "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            command + own, cwd=measuring.ROOT, stdout=self._words, stderr=self._words
        )

    def wait_for_training(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        while not (rows := metric_rows(self._run_dir)) or not _trained(rows[-1]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._words.seek(0)
                raise RuntimeError(f"no training began: {self._words.read()[-500:]!r}")
            time.sleep(0.5)

    def rate(self, seconds: float) -> float:
        """Trained env steps per second, from the last row before to the last row after."""
        time.sleep(_SET_OUT_SECONDS)
        before = metric_rows(self._run_dir)[-1]
        time.sleep(seconds)
        after = metric_rows(self._run_dir)[-1]
        return (_trained(after) - _trained(before)) / (after["time"] - before["time"])

    def pause(self) -> None:
        # The supervisor first and last: it must not see its nodes fall silent.
        for pid in _with_descendants(self._process.pid):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in reversed(_with_descendants(self._process.pid)):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.poll() is None:
            for pid in _with_descendants(self._process.pid):
                os.kill(pid, signal.SIGKILL)
        self._words.close()

    def finish(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        return json.loads((self._run_dir / "result.json").read_text(encoding="utf-8"))


def _trained(row: dict[str, Any]) -> float:
    return float(row.get("counter/trained_env_steps", 0))


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += _with_descendants(int(child))
    return found


def _cpu_times() -> tuple[int, int]:
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def _ask_gpu(field: str) -> str | None:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.splitlines()[0].strip()


def _gpu_share(seconds: float) -> float:
    """The share of the next `seconds` in which a kernel ran."""
    shares = []
    for _ in range(3):
        shares.append(float(_ask_gpu("utilization.gpu") or 0.0) / 100)
        time.sleep(seconds / 3)
    return statistics.fmean(shares)


def measure(arguments: argparse.Namespace, own: list[str], directory: Path) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    steppers = Steppers(arguments.env, cores, arguments.envs_per_actor // 2)
    steppers.pause()
    options = {name: getattr(arguments, name) for name in ("env", "network", "num_actors")}
    options["envs_per_actor"] = arguments.envs_per_actor
    endless = {"total_env_steps": 10**10, "evaluation_episodes": 0}
    run = PausableRun(directory, {**options, **endless}, own)
    try:
        rounds = _rounds(arguments, run, steppers)
        result = run.finish()
    finally:
        steppers.close()
        run.kill()
    alone, trained, cpu, gpu = (statistics.fmean(column) for column in zip(*rounds, strict=True))
    names = ("ceiling", "trained", "cpu", "gpu")
    return {
        "settings": {**vars(arguments), "own": own},
        "rounds": [dict(zip(names, one, strict=True)) for one in rounds],
        "ceiling": alone,
        "trained_steps_per_second": trained,
        "ratio_to_ceiling": trained / alone,
        "cpu_share": cpu,
        "gpu_share": gpu,
        "stage_shares": result["stage_shares"],
        "policy_lag": result["policy_lag"]["mean"],
    }


def _rounds(
    arguments: argparse.Namespace, run: PausableRun, steppers: Steppers
) -> list[tuple[float, ...]]:
    """Ceiling, trained steps/s, and the shares of cores and GPU used, of each round."""
    rounds: list[tuple[float, ...]] = []
    run.wait_for_training()
    time.sleep(arguments.warm_up_seconds)
    for _ in range(arguments.rounds):
        run.pause()
        steppers.go_on()
        alone = steppers.rate(arguments.seconds)
        steppers.pause()
        run.go_on()
        time.sleep(_SET_OUT_SECONDS)
        busy, total = _cpu_times()
        trained = run.rate(arguments.seconds)
        busy, total = _cpu_times()[0] - busy, _cpu_times()[1] - total
        rounds.append((alone, trained, busy / total, _gpu_share(1.5)))
        print("  ".join(f"{number:,.2f}" for number in rounds[-1]), flush=True)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--network", default="resnet")
    parser.add_argument("--num-actors", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--envs-per-actor", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--warm-up-seconds", type=float, default=15.0)
    parser.add_argument("--name", default="sample_factory_gpu")
    arguments, own = parser.parse_known_args()
    began = time.perf_counter()
    machine = {**measuring.machine(), "gpu": _ask_gpu("name")}
    with tempfile.TemporaryDirectory(prefix="veldt-benchmark-") as directory:
        entry = measure(arguments, own, Path(directory))
    entry["seconds"] = time.perf_counter() - began
    path = measuring.save(arguments.name, {"machine": machine, **entry})
    header = ("", "ceiling", "trained steps/s", "of ceiling", "cpu", "gpu")
    names = ("ceiling", "trained_steps_per_second", "ratio_to_ceiling", "cpu_share", "gpu_share")
    measuring.print_table(header, [(arguments.env, *(entry[name] for name in names))])
    for role, shares in entry["stage_shares"].items():
        print(f"  {role}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
    print(path)


if __name__ == "__main__":
    main()
