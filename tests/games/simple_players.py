# SPDX-License-Identifier: Apache-2.0
"""Opponents for tests: random ones, and scripted ones for a league's pool."""

from __future__ import annotations

import numpy as np


class RandomOpponents:
    """Draws legal actions uniformly; for games with discrete actions."""

    def __init__(self, seed=0):
        self._random = np.random.default_rng(seed)

    def act(self, turns):
        legal = turns.legal
        return np.where(legal, self._random.random(legal.shape), -1.0).argmax(axis=1)

    def game_over(self, games, seats, returns):
        pass


def random_script(seen, legal, random):
    return legal / legal.sum(axis=1, keepdims=True)


def first_legal_script(seen, legal, random):
    return np.eye(legal.shape[1])[legal.argmax(axis=1)]
