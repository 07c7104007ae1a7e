# SPDX-License-Identifier: Apache-2.0
"""How quickly `veldt serve` answers eight clients: at a rate that is given, and as fast as it goes.

python benchmarks/serve.py    writes benchmarks/results/serve.json
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from veldt_client import PolicyClient

CLIENTS, SECONDS, WARM_UP_SECONDS = 8, 8.0, 1.0
RATES = (1_000, 0)
"""Requests per second of all clients together; 0: each asks again as soon as it is answered."""
_SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}


def ask(address: str, per_second: float, number: int) -> None:
    """One client: prints how long each of its requests took, in milliseconds."""
    pause = 1.0 / per_second if per_second else 0.0
    took = []
    with PolicyClient(address) as policy:
        policy.act([0.0] * 4)
        began = time.perf_counter()
        due = began + pause * number / CLIENTS
        while (now := time.perf_counter()) < began + WARM_UP_SECONDS + SECONDS:
            if now < due:
                time.sleep(due - now)
            asked = time.perf_counter()
            policy.act([0.01, -0.02, 0.03, 0.04])
            if asked > began + WARM_UP_SECONDS:
                took.append((time.perf_counter() - asked) * 1e3)
            due += pause
    print(json.dumps(took))


def measured(run_dir: Path, rate: int) -> dict[str, Any]:
    """Latencies of eight clients in processes of their own."""
    command = [sys.executable, "-m", "veldt", "serve", str(run_dir), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        client = [sys.executable, __file__, "--client", address, str(rate / CLIENTS)]
        clients = [
            subprocess.Popen([*client, str(number)], stdout=subprocess.PIPE, text=True)
            for number in range(CLIENTS)
        ]
        took = sorted(value for each in clients for value in json.loads(each.communicate()[0]))
        server.send_signal(signal.SIGTERM)
        ended = json.loads(server.stdout.readline())
    found = {
        "rate_asked_per_second": rate or None,
        "answers_per_second": round(len(took) / SECONDS, 1),
        "p50_ms": round(took[len(took) // 2], 3),
        "p99_ms": round(took[int(len(took) * 0.99)], 3),
        "slowest_ms": round(took[-1], 3),
        "requests_per_forward_pass": round(ended["requests"] / ended["forward_passes"], 2),
    }
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    from measuring import machine, save

    import veldt

    where, entries = machine(), []
    for label, own in {"impala": {}, "impala --recurrent lstm": {"recurrent": "lstm"}}.items():
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            options = {"total_env_steps": 60, "run_dir": str(run_dir), **_SMALL, **own}
            veldt.train("impala", "CartPole-v1", **options)
            entries += [{"run": label, **measured(run_dir, rate)} for rate in RATES]
    about = {"env": "CartPole-v1", "clients": CLIENTS, "seconds": SECONDS, "machine": where}
    save("serve", {**about, "entries": entries})


if __name__ == "__main__":
    if "--client" in sys.argv:
        ask(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
