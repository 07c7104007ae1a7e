# SPDX-License-Identifier: Apache-2.0
"""Random values for all options end in one line or in a run that works."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fuzzing

VALUES = int(os.environ.get("VELDT_FUZZ_VALUES", 300))  # 10,000 at night
TRAININGS = int(os.environ.get("VELDT_FUZZ_TRAININGS", 6))
SEED = int(os.environ.get("VELDT_FUZZ_SEED", 0))


def test_no_value_ends_in_a_trace_a_hang_or_a_run_that_cannot_work() -> None:
    account = fuzzing.fuzz(SEED, VALUES, TRAININGS)
    assert not account.faults, "\n".join(account.faults)
    assert account.values == VALUES
    assert account.refused > VALUES // 10
    assert account.planned > VALUES // 10
    assert account.trained


def test_what_raises_and_what_spins_is_found() -> None:
    """The judge itself: an environment that raises is refused, one that spins is a fault."""
    account = fuzzing.Account()
    case = fuzzing.Case("impala", {"network": fuzzing.raising}, typed=False)
    assert not fuzzing.judge(case, account)
    assert (account.refused, account.faults) == (1, [])
    assert not fuzzing.judge(fuzzing.Case("impala", {"env": _spinning}, typed=False), account, 0.2)
    assert "no plan after 0.2 s" in account.faults[0]


def _spinning(**options: object) -> object:
    while True:
        pass
