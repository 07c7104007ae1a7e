# SPDX-License-Identifier: Apache-2.0
"""Population-based training: several policies trained at the same time, the worst replaced."""
