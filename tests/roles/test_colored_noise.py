# SPDX-License-Identifier: Apache-2.0
"""Colored noise: standard normal at every step, correlated as its exponent says."""

import numpy as np
import pytest

from veldt.roles.policies.selection import NoisePerEnvironment, colored_noise


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


@pytest.mark.parametrize(("share", "pink"), [(0.0, []), (0.25, [0, 4]), (1.0, list(range(8)))])
def test_a_share_of_the_environments_has_pink_noise(share, pink):
    noise = NoisePerEnvironment(share, np.random.default_rng(3))
    rows = np.stack([noise.next(np.arange(8), 1)[:, 0] for _ in range(3000)])
    alike = (rows[1:] * rows[:-1]).mean(axis=0)
    assert list(np.flatnonzero(alike > 0.3)) == pink
    np.testing.assert_allclose(rows.std(axis=0), 1.0, atol=0.25)


def test_an_environments_noise_goes_on_whoever_else_asks():
    noise = NoisePerEnvironment(1.0, np.random.default_rng(4))
    rows = [noise.next(np.array(asked), 2) for asked in ([0, 1], [1], [0], [0, 1])]
    one = np.stack([rows[0][1], rows[1][0], rows[3][1]])
    np.testing.assert_array_equal(one, noise._sequences[1][:3])
