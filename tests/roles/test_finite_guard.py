# SPDX-License-Identifier: Apache-2.0
import pytest
from wiring import context

from veldt.roles.learner import MOST_DROPS_IN_A_ROW, FiniteGuard, NotFiniteError


def test_only_drops_in_a_row_end_a_run():
    own = context()
    drops, guard = own.telemetry.counter("dropped.not_finite"), FiniteGuard(own)

    def update(drop):
        drops.add(int(drop))
        guard.check()

    for number in range(100):
        update(number % MOST_DROPS_IN_A_ROW != 0)
    update(False)
    for _ in range(MOST_DROPS_IN_A_ROW - 1):
        update(True)
    with pytest.raises(NotFiniteError, match="in a row"):
        update(True)
