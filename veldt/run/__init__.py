# SPDX-License-Identifier: Apache-2.0
"""One run: its plan, its course, its directory, its checkpoints, and how it is loaded again."""
