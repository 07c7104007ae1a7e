# SPDX-License-Identifier: Apache-2.0
"""Does `veldt sweep` mend a bad learning rate, prune, and survive kill -9?

A configuration whose learning rate is far too low is swept with 12 trials, two at a time. Once a
third of them has ended, the sweep is killed with SIGKILL, and the same command goes on.

python benchmarks/sweep.py    writes benchmarks/results/sweep.json, in about two minutes
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import machine, save

_BAD = 'architecture = "impala"\nenv = "CartPole-v1"\nlearning_rate = 1e-6\n'
_TRIALS = 12
_WORDS = (
    "sweep --config bad.toml --search learning_rate=1e-6..1e-1:log"
    f" --trials {_TRIALS} --parallel 2 --max-seconds 20 --out sweep"
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="veldt-sweep-") as directory:
        folder = Path(directory)
        (folder / "bad.toml").write_text(_BAD)
        began = time.monotonic()
        ended_before = _killed_after(folder, _TRIALS // 3)
        _start(folder).wait()
        seconds = time.monotonic() - began
        result = json.loads((folder / "sweep" / "result.json").read_text(encoding="utf-8"))
    counts = dict.fromkeys(("complete", "pruned", "failed"), 0)
    for trial in result["trials"]:
        counts[trial["state"]] += 1
        trial.pop("note")
    [first, *_] = [t for t in result["trials"] if t["values"]["learning_rate"] == 1e-6]
    save(
        "sweep",
        {
            "command": "python benchmarks/sweep.py",
            "swept": shlex.join(["veldt", *shlex.split(_WORDS)]),
            "bad_preset": _BAD.splitlines(),
            "machine": machine(),
            "seconds": seconds,
            "ended_before_kill_9": ended_before,
            "counts": counts,
            "score_of_the_bad_preset": first["score"],
            "best": result["best"],
            "repeat": result["command"],
            "trials": result["trials"],
        },
    )


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "veldt", *shlex.split(_WORDS)]
    return subprocess.Popen(command, cwd=folder)


def _killed_after(folder: Path, ended: int) -> int:
    """Start the sweep and kill it once so many trials have a result; how many it were."""
    process = _start(folder)
    while (count := len(list(folder.glob("sweep/trials/*/result.json")))) < ended:
        if process.poll() is not None:
            raise RuntimeError("the sweep has ended before it was killed")
        time.sleep(0.2)
    process.kill()
    process.wait()
    return count


if __name__ == "__main__":
    main()
