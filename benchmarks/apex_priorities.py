# SPDX-License-Identifier: Apache-2.0
"""Ape-X with and without priorities computed by the actors; serial and deterministic."""

from __future__ import annotations

import sys

from claim_runs import main
from claims.apex import ActorPriorities

if __name__ == "__main__":
    sys.exit(main(ActorPriorities, "apex_priorities"))
