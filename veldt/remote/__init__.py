# SPDX-License-Identifier: Apache-2.0
"""Runs that live elsewhere: written here, uploaded in the background, brought back where needed."""
