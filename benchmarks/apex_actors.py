# SPDX-License-Identifier: Apache-2.0
"""Ape-X: score against the number of actors at a fixed learner rate; serial, deterministic."""

from __future__ import annotations

import sys

from claim_runs import main
from claims.apex import MoreActors

if __name__ == "__main__":
    sys.exit(main(MoreActors, "apex_actors"))
