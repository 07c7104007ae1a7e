# SPDX-License-Identifier: Apache-2.0
"""Roles that keep experience and hand it out again."""
