# SPDX-License-Identifier: Apache-2.0
"""A trained policy outside its run: acting, as a module, exported."""

from veldt.policy.module import PolicyModule
from veldt.policy.trained import Action, PolicyState, TrainedPolicy

__all__ = ["Action", "PolicyModule", "PolicyState", "TrainedPolicy"]
