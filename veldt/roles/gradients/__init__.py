# SPDX-License-Identifier: Apache-2.0
"""Who applies gradients: the learner itself, a server, shared memory, a group."""
