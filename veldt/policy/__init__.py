# SPDX-License-Identifier: Apache-2.0
"""What was trained, outside of the run that trained it."""

from veldt.policy.module import PolicyModule
from veldt.policy.trained import Action, PolicyState, TrainedPolicy

__all__ = ["Action", "PolicyModule", "PolicyState", "TrainedPolicy"]
