# SPDX-License-Identifier: Apache-2.0
"""Several policies trained side by side, and who takes over from whom (PBT)."""
