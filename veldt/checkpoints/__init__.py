# SPDX-License-Identifier: Apache-2.0
"""What survives a run: a format that trusts nothing, and the store of its files."""
