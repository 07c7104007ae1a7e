# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run on their way to W&B and MLflow, from a process of its own."""
