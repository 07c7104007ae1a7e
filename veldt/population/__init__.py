# SPDX-License-Identifier: Apache-2.0
"""Several policies trained side by side, and who takes over from whom (PBT).

An architecture that can train a population has a `population` group in its Config, and a builder of
the same name here, which is used when there are several policies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from veldt.population.options import PopulationOptions
from veldt.problem import Problem
from veldt.topology import Topology


@runtime_checkable
class HasPopulation(Protocol):
    """A Config of an architecture that several policies can be trained with."""

    @property
    def population(self) -> PopulationOptions: ...


def population_builder(architecture: str) -> Callable[[Any, Problem], Topology]:
    """What wires several policies of `architecture`."""
    module = importlib.import_module(f"veldt.population.{architecture}")
    build: Callable[[Any, Problem], Topology] = module.build
    return build
