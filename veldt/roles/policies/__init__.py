# SPDX-License-Identifier: Apache-2.0
"""Who answers "what now?": a copy of the weights, or a server elsewhere."""
