# SPDX-License-Identifier: Apache-2.0
"""Runs in an object store: trained in a local directory, uploaded in the background."""
