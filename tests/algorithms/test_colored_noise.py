# SPDX-License-Identifier: Apache-2.0
"""Colored noise: standard normal at every step, correlated as its exponent says."""

import numpy as np
import pytest

from veldt.algorithms.colored_noise import colored_noise


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 2, 63, 64])
def test_every_value_is_standard_normal(exponent, steps):
    noise = colored_noise(steps, (4000, 2), exponent, np.random.default_rng(0))
    assert noise.shape == (steps, 4000, 2)
    assert noise.dtype == np.float32
    np.testing.assert_allclose(noise.mean(axis=(1, 2)), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.std(axis=(1, 2)), 1.0, atol=0.05)


def test_neighbours_are_alike_where_slow_waves_are_strong():
    found = []
    for exponent in (0.0, 1.0, 2.0):
        noise = colored_noise(1024, (200,), exponent, np.random.default_rng(1))
        found.append((noise[1:] * noise[:-1]).mean())
    assert abs(found[0]) < 0.02
    assert 0.5 < found[1] < 0.95 < found[2]


def test_power_falls_with_frequency():
    noise = colored_noise(1024, (500,), 1.0, np.random.default_rng(2))
    power = np.square(np.abs(np.fft.rfft(noise, axis=0))).mean(axis=1)
    slow, fast = power[8:16].mean(), power[128:256].mean()
    assert slow / fast == pytest.approx(16.0, rel=0.15)
