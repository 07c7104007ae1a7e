# SPDX-License-Identifier: Apache-2.0
"""A3C with 1, 2 and 4 workers: how alike successive updates are, and how long a score takes.

More workers than cores cannot be faster; the core count stands in every row.
"""

from __future__ import annotations

import sys

from claim_runs import main
from claims.a3c_workers import AsynchronousActors

if __name__ == "__main__":
    sys.exit(main(AsynchronousActors, "a3c_workers"))
