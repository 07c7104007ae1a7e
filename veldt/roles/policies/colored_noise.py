# SPDX-License-Identifier: Apache-2.0
"""Exploration noise that remembers: Eberhard et al. 2023, Pink Noise Is All You Need.

White noise on actions averages out over a few steps and moves nothing heavy; noise whose power
falls with frequency pushes one way for a while. Every single value is still standard normal.
"""

from __future__ import annotations

import numpy as np


def colored_noise(
    steps: int, shape: tuple[int, ...], exponent: float, random: np.random.Generator
) -> np.ndarray:
    """Standard normal sequences [steps, *shape], power ~ 1 / frequency^exponent.

    0 is white, 1 pink, 2 a walk. Timmer and Koenig 1995: random amplitudes of all frequencies,
    scaled, then one inverse Fourier transform.
    """
    frequencies = np.fft.rfftfreq(steps)
    # The mean of a sequence is as strong as its slowest wave; with infinite power it would be all.
    frequencies[0] = frequencies[1] if len(frequencies) > 1 else 1.0
    scale = frequencies ** (-exponent / 2.0)
    amplitudes = random.standard_normal((2, *shape, len(frequencies))) * scale
    real, imaginary = amplitudes
    imaginary[..., 0] = 0.0  # the mean is real, as is the fastest wave of an even number of steps
    real[..., 0] *= np.sqrt(2.0)
    if steps % 2 == 0:
        imaginary[..., -1] = 0.0
        real[..., -1] *= np.sqrt(2.0)
    waves = np.fft.irfft(real + 1j * imaginary, n=steps, axis=-1)
    deviation = np.sqrt(_variance(scale, steps))
    return np.moveaxis(waves / deviation, -1, 0).astype(np.float32)


def _variance(scale: np.ndarray, steps: int) -> float:
    """Variance of each value before it is scaled to 1."""
    squares = 4.0 * np.square(scale)
    squares[0] /= 2.0
    if steps % 2 == 0:
        squares[-1] /= 2.0
    return float(squares.sum()) / steps**2


class NoiseStream:
    """Rows [E, d] of noise, one after the other, cut from sequences of `steps` rows.

    A sequence does not begin anew with an episode: what pushes on across an end does no harm."""

    def __init__(self, exponent: float, random: np.random.Generator, steps: int = 1024) -> None:
        self._exponent, self._random, self._steps = exponent, random, steps
        self._noise, self._row = np.empty((0, 0), np.float32), 0

    def next(self, shape: tuple[int, ...]) -> np.ndarray:
        if self._exponent == 0.0:
            return self._random.standard_normal(shape, np.float32)
        if self._row >= len(self._noise):
            self._noise = colored_noise(self._steps, shape, self._exponent, self._random)
            self._row = 0
        self._row += 1
        return self._noise[self._row - 1]


class NoisePerEnvironment:
    """Rows [d] of noise for environments by their number: pink for a `share` of them, spread
    evenly, white for the rest. Whoever asks, and how many at a time, makes no difference to how an
    environment's sequence goes on."""

    def __init__(self, share: float, random: np.random.Generator, steps: int = 1024) -> None:
        self._share, self._random, self._steps = share, random, steps
        self._sequences: dict[int, np.ndarray] = {}
        self._rows: dict[int, int] = {}

    def is_pink(self, environments: np.ndarray) -> np.ndarray:
        return (environments * self._share) % 1.0 < self._share

    def next(self, environments: np.ndarray, size: int) -> np.ndarray:
        noise = self._random.standard_normal((len(environments), size), np.float32)
        for row in np.flatnonzero(self.is_pink(environments)):
            noise[row] = self._pink(int(environments[row]), size)
        return noise

    def _pink(self, environment: int, size: int) -> np.ndarray:
        row = self._rows.get(environment, self._steps)
        if row >= self._steps:
            self._sequences[environment] = colored_noise(self._steps, (size,), 1.0, self._random)
            row = 0
        self._rows[environment] = row + 1
        return self._sequences[environment][row]
