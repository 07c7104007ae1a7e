# SPDX-License-Identifier: Apache-2.0
"""The claims that made the lineage, each as a small experiment with a verdict and a figure."""
