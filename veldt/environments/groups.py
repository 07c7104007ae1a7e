# SPDX-License-Identifier: Apache-2.0
"""The environments of one actor."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.environments.factory import EnvironmentFactory


@dataclass(frozen=True)
class Environments:
    """Groups of equal width, which an actor steps one after the other."""

    factory: EnvironmentFactory
    num_envs: int
    num_groups: int = 1

    @property
    def width(self) -> int:
        return self.num_envs // self.num_groups
