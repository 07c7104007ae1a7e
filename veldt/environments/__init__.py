# SPDX-License-Identifier: Apache-2.0
"""One interface over Gymnasium vector environments, ale-py, EnvPool and a user's own."""

from veldt.environments.factory import EnvironmentFactory, Environments, Interface
from veldt.environments.small_tasks import register_small_tasks
from veldt.environments.vector import Step, VectorEnvironment

register_small_tasks()

__all__ = ["EnvironmentFactory", "Environments", "Interface", "Step", "VectorEnvironment"]
