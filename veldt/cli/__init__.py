# SPDX-License-Identifier: Apache-2.0
"""The `veldt` command."""
