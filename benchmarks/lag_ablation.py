# SPDX-License-Identifier: Apache-2.0
"""IMPALA's ablation in small: what each correction is worth under lag, and what a replay adds.

Serial: the same command gives the same numbers, bit for bit.
"""

from __future__ import annotations

import sys

from claim_runs import main
from claims.impala_corrections import VtraceUnderLag

if __name__ == "__main__":
    sys.exit(main(VtraceUnderLag, "lag_ablation"))
