# SPDX-License-Identifier: Apache-2.0
"""Random values for every option of every architecture: how many are refused with one line, how
many are planned, and what becomes of those plans that are trained for a moment.

Writes benchmarks/results/option_fuzz.json; exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

from measuring import ROOT, machine, save

sys.path.insert(0, str(ROOT / "tests" / "options"))
from fuzzing import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=10_000)
    parser.add_argument("--trainings", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    about, began = machine(), time.monotonic()
    account = fuzz(arguments.seed, arguments.values, arguments.trainings)
    payload = {"machine": about, "seed": arguments.seed, "seconds": time.monotonic() - began}
    print(f"wrote {save('option_fuzz', payload | asdict(account))}")
    for name, value in asdict(account).items():
        print(f"{name:<28}{value}")
    return 1 if account.faults else 0


if __name__ == "__main__":
    sys.exit(main())
