# SPDX-License-Identifier: Apache-2.0
"""Trained steps per second of local and central inference over the width of the network.

python benchmarks/central_inference.py --widths 64,256,1024 --architectures impala,seed_rl
"""

from __future__ import annotations

import sys

from claim_runs import main
from claims.central_inference import CentralInferenceWins

if __name__ == "__main__":
    sys.exit(main(CentralInferenceWins, "central_inference"))
