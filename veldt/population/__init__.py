# SPDX-License-Identifier: Apache-2.0
"""Population-based training: several policies trained side by side, the worst replaced.

An architecture supports it with a `population` group in its Config; nothing else in it changes.
"""
