# SPDX-License-Identifier: Apache-2.0
"""Veldt: every architecture of distributed reinforcement learning, from DQN to Sample Factory."""

from veldt.api import evaluate, resume, train
from veldt.errors import ConfigurationError
from veldt.telemetry.result import RunResult

__all__ = ["ConfigurationError", "RunResult", "evaluate", "resume", "train"]
__version__ = "0.1.0"
