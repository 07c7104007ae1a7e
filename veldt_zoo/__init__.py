# SPDX-License-Identifier: Apache-2.0
"""Run directories of trained policies, without optimizer: the data of `veldt zoo`."""
