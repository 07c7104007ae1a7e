# SPDX-License-Identifier: Apache-2.0
"""Commands on finished runs: evaluate, export, serve and play."""
