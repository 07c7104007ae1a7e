# SPDX-License-Identifier: Apache-2.0
"""Veldt beside Stable-Baselines3, Sample Factory and RLlib on this machine: `make bench-peers`.

Each run is a process tree of its own, one after another, all contestants of a seed before the next
seed. What is finished is kept in benchmarks/results/peers.json and not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import peers_figure
import peers_report
from measuring import tree_bytes

from veldt.files import write_atomically

CARTPOLE, PONG = "CartPole-v1", "ALE/Pong-v5"
ADAPTERS = measuring.ROOT / "benchmarks" / "peers"
PACKAGES = {"sb3": "stable-baselines3", "sample_factory": "sample-factory", "rllib": "ray"}
LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py")
SAME = ("cpu", "cores", "system", "python", "versions")  # else old runs are of another machine
_RATE_LIMIT_SECONDS = 150.0  # RLlib on Pong has been seen to start for most of a minute
_GRACE_SECONDS = 60.0  # to stop, beyond its limit
_MEMORY_SECONDS = 3.0  # reading the sizes of a dozen processes costs some of a core
Run = dict[str, Any]


@dataclass(frozen=True)
class Contestant:
    """One framework with one setting on one environment; the adapters explain the settings."""

    framework: str
    setting: str
    env: str = CARTPOLE

    @property
    def name(self) -> str:
        return f"{self.framework} {self.setting}"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("rate", "score") if self.env == CARTPOLE else ("rate",)

    def python(self) -> str:
        if self.framework == "veldt":
            return sys.executable
        return str(measuring.ROOT / ".peers" / self.framework / "bin" / "python")


CONTESTANTS = (
    Contestant("sb3", "a2c"),
    Contestant("sb3", "ppo"),
    Contestant("sample_factory", "async256"),
    Contestant("sample_factory", "serial32"),
    Contestant("rllib", "impala"),
    Contestant("rllib", "ppo"),
    Contestant("veldt", "impala"),
    Contestant("veldt", "impala_256"),
    Contestant("veldt", "a3c"),
    Contestant("veldt", "a2c"),
    Contestant("veldt", "sample_factory"),
    Contestant("sb3", "a2c", PONG),
    Contestant("sb3", "a2c_threads", PONG),
    Contestant("sample_factory", "async16", PONG),
    Contestant("sample_factory", "serial16", PONG),
    Contestant("rllib", "impala", PONG),
    Contestant("veldt", "impala", PONG),
    Contestant("veldt", "a3c", PONG),
    Contestant("veldt", "a2c", PONG),
    Contestant("veldt", "sample_factory", PONG),
)


def conditions(given: argparse.Namespace, env: str, mode: str) -> dict[str, float]:
    """What a run was allowed; a run under other conditions is another run. A step of Pong takes
    longer than one of CartPole, and so does settling down."""
    slow = 1.5 if env == PONG else 1.0
    limit = given.limit if mode == "score" else _RATE_LIMIT_SECONDS
    return {"warm_up": slow * given.warm_up, "seconds": slow * given.seconds, "limit": limit}


def command_of(contestant: Contestant, mode: str, seed: int, rules: dict[str, float]) -> list[str]:
    script = ADAPTERS / f"run_{contestant.framework}.py"
    words = [contestant.python(), str(script), contestant.setting, "--env", contestant.env]
    words += ["--mode", mode, "--seed", str(seed)]
    for name, value in rules.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    return words


def execute(command: list[str], limit_seconds: float) -> Run:
    """One adapter from start to end: its last line, and the most memory its processes had."""
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as directory:
        out, err = Path(directory) / "out", Path(directory) / "err"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PEERS_FIRST_STEP_FILE"] = str(Path(directory) / "first-step")
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
            )
            peak, is_late = _watch(process, limit_seconds)
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
        words = err.read_text(encoding="utf-8", errors="replace").strip()[-400:]
    if is_late:
        return {"error": f"still running after {limit_seconds:.0f} s"}
    if process.returncode or not lines or not lines[-1].startswith("{"):
        return {"error": f"exit code {process.returncode}: {words}"}
    return {**json.loads(lines[-1]), "peak_memory_mb": peak / 2**20 if peak else None}


def _watch(process: subprocess.Popen[bytes], limit_seconds: float) -> tuple[int, bool]:
    """Peak bytes, and whether it had to be killed."""
    begun, peak, next_look = time.monotonic(), 0, 1.0
    try:
        while process.poll() is None and (elapsed := time.monotonic() - begun) < limit_seconds:
            if elapsed >= next_look:
                peak = max(peak, tree_bytes(process.pid) or 0)
                next_look = elapsed + _MEMORY_SECONDS
            time.sleep(0.1)
        return peak, process.poll() is None
    finally:  # also after Ctrl-C: nothing may go on beside the next measurement
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def key_of(run: Run) -> tuple[Any, ...]:
    names = ("framework", "setting", "env", "mode", "seed")
    return (*(run[name] for name in names), *sorted(run["conditions"].items()))


def wanted(given: argparse.Namespace) -> list[tuple[Contestant, str, int]]:
    """Seed by seed, so that what disturbs the machine for a while disturbs everybody."""
    chosen = [c for c in CONTESTANTS if not given.only or any(w in _tags(c) for w in given.only)]
    return [(c, mode, seed) for seed in range(given.seeds) for c in chosen for mode in c.modes]


def _tags(contestant: Contestant) -> tuple[str, ...]:
    return contestant.framework, contestant.name, contestant.env


def kept_runs(document: dict[str, Any], machine: dict[str, Any]) -> list[Run]:
    """Finished runs of an earlier call, unless they are of another machine or other versions."""
    before = document.get("machine", {})
    if any(before.get(name) != machine[name] for name in SAME):
        return []
    return [run for run in document.get("runs", []) if "error" not in run]


def step_costs(given: argparse.Namespace, cores: int) -> dict[str, Any]:
    """Costs of a Pong step with one process at work, and with one on every core."""
    script = str(measuring.ROOT / "benchmarks" / "step_costs.py")
    command = [sys.executable, script, "--env", PONG, "--seconds", f"{given.seconds / 2:g}"]

    def together(copies: int) -> dict[str, float]:
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(copies)]
        reports = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
        return {name: measuring.median([r[name] for r in reports]) for name in reports[0]}

    return {"alone": together(1), "all_cores": together(cores), "cores": cores}


def installed(framework: str) -> dict[str, str]:
    """Versions in a contestant's environment."""
    names = (*((PACKAGES[framework],) if framework in PACKAGES else ()), *LIBRARIES)
    program = "import json, sys; from importlib.metadata import version\n"
    program += "print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    python = Contestant(framework, "").python()
    done = subprocess.run([python, "-c", program, *names], capture_output=True, check=True)
    return json.loads(done.stdout)


def measure(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine = measuring.machine()
    runs = [] if given.again else kept_runs(document, machine)
    costs = document.get("step_costs") or {} if runs else {}
    versions = {name: installed(name) for name in dict.fromkeys(c.framework for c in CONTESTANTS)}
    document = {"machine": machine, "versions": versions, "target": given.target, "runs": runs}
    todo = wanted(given)
    for number, (contestant, mode, seed) in enumerate(todo, 1):
        rules = {**conditions(given, contestant.env, mode), "target": given.target}
        words = command_of(contestant, mode, seed, rules)
        run: Run = {"framework": contestant.framework, "setting": contestant.setting}
        run |= {"env": contestant.env, "mode": mode, "seed": seed, "conditions": rules}
        if any(key_of(old) == key_of(run) for old in runs):
            continue
        run |= execute(words, rules["limit"] + _GRACE_SECONDS)
        if mode == "rate" and "error" not in run and not run["steps_per_second"]:
            run["error"] = "too few updates for a rate"
        shown = [Path(word).name if word.startswith("/") else word for word in words]
        runs.append({**run, "commit": machine["commit"], "command": " ".join(shown)})
        print(f"{number}/{len(todo)}  seed {seed}  {mode:5}  {contestant.env}  {contestant.name}:"
              f"  {peers_report.in_words(run)}", flush=True)  # fmt: skip
        _save(path, document, costs)
        # Beside the runs it is compared with: the machine's pace changes over the minutes.
        if (contestant.framework, contestant.env) == ("veldt", PONG) and str(seed) not in costs:
            costs[str(seed)] = step_costs(given, machine["cores"])
    return _save(path, document, costs)


def _save(path: Path, document: dict[str, Any], costs: dict[str, Any]) -> dict[str, Any]:
    """The file is whole at any time: a kill loses the current run at most."""
    document = {**document, "step_costs": costs}
    document |= peers_report.summary(document)
    write_atomically(path, json.dumps(measuring.plain(document), indent=1) + "\n")
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="frameworks, 'framework setting', environments")
    parser.add_argument("--seconds", type=float, default=8.0, help="window of a rate; Pong: x 1.5")
    parser.add_argument("--warm-up", type=float, default=4.0, help="before the window, likewise")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to reach the target")
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--quick", action="store_true", help="1 seed, short windows: does it work?")
    parser.add_argument("--again", action="store_true", help="repeat what is finished, too")
    parser.add_argument("--out", type=Path, default=measuring.RESULTS / "peers.json")
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.seconds, given.warm_up, given.limit = 1, 3.0, 1.0, 30.0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left behind
    begun = time.monotonic()
    document = measure(given, given.out)
    for title, header, rows in peers_report.tables(document):
        print(f"\n{title}")
        measuring.print_table(header, rows)
    print("\n" + "\n".join(peers_report.verdicts(document)))
    if given.out == measuring.RESULTS / "peers.json":
        peers_figure.draw(document, peers_report.FIGURE)
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes; {given.out.name} is written, and")
    print("python docs/generate.py --readme puts it into the documentation")


if __name__ == "__main__":
    main()
