# SPDX-License-Identifier: Apache-2.0
"""One run: what it will be, its life, its directory and what is left of it."""
