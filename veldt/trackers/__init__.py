# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run sent to W&B and MLflow by a process of its own."""
