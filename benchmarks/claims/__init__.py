# SPDX-License-Identifier: Apache-2.0
"""The claims of the papers, each a small experiment with a rule that gives a verdict."""
