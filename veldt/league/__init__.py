# SPDX-License-Identifier: Apache-2.0
"""Self-play against a pool of opponents: who plays whom, frozen models, measures of strength."""
