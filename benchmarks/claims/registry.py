# SPDX-License-Identifier: Apache-2.0
"""All claims, in the order of the lineage's questions."""

from __future__ import annotations

from collections.abc import Sequence

from veldt.errors import ConfigurationError, did_you_mean

from .a2c_lag import SynchronousIsBetter, SynchronousMatches
from .a3c_optimizers import SharedStatistics
from .a3c_workers import AsynchronousActors
from .apex import ActorPriorities, LadderAndPriorities, MoreActors
from .central_inference import CentralInferenceWins
from .claim import Claim
from .double_buffering import DoubleBuffering
from .exact import ReplayTraffic, SameAgent, WeightTraffic
from .ga3c_controller import ControllerFinds
from .gorila_faults import DroppingProtects
from .gpu import BatchedOnGpu, CentralInferenceOnGpu
from .impala_corrections import VtraceForGa3c, VtraceReplay, VtraceUnderLag
from .lag_tolerance import ManyWorkersAge, ReplayTolerates
from .tabular import ImportanceVariance, VtraceFixedPoint
from .two_learners import TwoLearners
from .waiting import ManyBundles, StragglersHurtBarriers

CLAIMS: dict[str, type[Claim]] = {
    kind.name: kind
    for kind in (
        ManyBundles,
        ReplayTraffic,
        AsynchronousActors,
        SharedStatistics,
        ManyWorkersAge,
        SynchronousMatches,
        SynchronousIsBetter,
        StragglersHurtBarriers,
        SameAgent,
        ControllerFinds,
        VtraceForGa3c,
        ActorPriorities,
        MoreActors,
        LadderAndPriorities,
        ReplayTolerates,
        VtraceFixedPoint,
        ImportanceVariance,
        VtraceUnderLag,
        VtraceReplay,
        TwoLearners,
        CentralInferenceWins,
        WeightTraffic,
        DoubleBuffering,
        DroppingProtects,
        BatchedOnGpu,
        CentralInferenceOnGpu,
    )
}


def chosen(names: Sequence[str], gpu: bool = False) -> list[type[Claim]]:
    """The claims of these names, in the order of the registry. For none: all that need no CUDA
    device or, with `gpu`, all that do."""
    for name in names:
        if name not in CLAIMS:
            hint = did_you_mean(name, CLAIMS)
            raise ConfigurationError(f"unknown claim '{name}'; {hint}")
        if CLAIMS[name].needs_gpu and not gpu:
            raise ConfigurationError(f"the claim '{name}' needs a CUDA device; add --gpu")
    if names:
        return [kind for name, kind in CLAIMS.items() if name in names]
    return [kind for kind in CLAIMS.values() if kind.needs_gpu == gpu]
