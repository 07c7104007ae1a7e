# SPDX-License-Identifier: Apache-2.0
"""The printed equations, written slowly: loops over rows and sums in NumPy that share no recursion
with the package. Also the random trajectories that both sides are given."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from hypothesis import strategies as st

from veldt.options import Correction


@dataclass
class Rows:
    """A float64 trajectory [T, B] in which a row's flags may be any combination."""

    rewards: np.ndarray
    values: np.ndarray
    next_values: np.ndarray
    log_rhos: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ignored: np.ndarray

    def tensors(self, *names: str) -> list[torch.Tensor]:
        return [torch.from_numpy(getattr(self, name).copy()) for name in names]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rewards.shape


FLAGS = ("terminated", "truncated", "ignored")


def random_rows(seed: int, steps: int, envs: int, share_of_flags: float) -> Rows:
    """Values agree with next_values except at ends, where the successor is another observation."""
    random = np.random.default_rng(seed)
    shape = (steps, envs)
    terminated, truncated, ignored = (random.random(shape) < share_of_flags for _ in FLAGS)
    values = random.normal(size=(steps + 1, envs))
    next_values = values[1:].copy()
    ends = terminated | truncated
    next_values[ends] = random.normal(size=shape)[ends]
    rewards, log_rhos = random.normal(size=shape), random.normal(size=shape)
    return Rows(rewards, values[:-1], next_values, log_rhos, terminated, truncated, ignored)


rows = st.builds(
    random_rows,
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.1, 0.4]),
)


def window(data: Rows, t: int, b: int, n: int | None = None) -> list[int]:
    """Rows t, t + 1, ... of one episode, at most n; empty if row t is ignored."""
    found: list[int] = []
    for s in range(t, len(data.rewards)):
        if data.ignored[s, b] or len(found) == n:
            break
        found.append(s)
        if data.terminated[s, b] or data.truncated[s, b]:
            break
    return found


def n_step_return(data: Rows, t: int, b: int, gamma: float, n: int | None = None) -> float:
    """sum_k gamma^k r_{t+k} + gamma^m V(x_{t+m})."""
    inside = window(data, t, b, n)
    if not inside:
        return 0.0
    total = sum(gamma**k * data.rewards[s, b] for k, s in enumerate(inside))
    if not data.terminated[inside[-1], b]:
        total += gamma ** len(inside) * data.next_values[inside[-1], b]
    return total


def td(data: Rows, t: int, b: int, gamma: float) -> float:
    """r_t + gamma V(x_{t+1}) - V(x_t)."""
    bootstrap = 0.0 if data.terminated[t, b] else gamma * data.next_values[t, b]
    return data.rewards[t, b] + bootstrap - data.values[t, b]


def vtrace_target(
    data: Rows, s: int, b: int, gamma: float, lambda_: float, rho_bar: float, c_bar: float
) -> float:
    """IMPALA's equation 1."""
    ratios = np.exp(data.log_rhos[:, b])
    total = data.values[s, b]
    for t in window(data, s, b):
        c = np.prod([lambda_ * min(c_bar, ratios[i]) for i in range(s, t)])
        total += gamma ** (t - s) * c * min(rho_bar, ratios[t]) * td(data, t, b, gamma)
    return total


def vtrace_advantage(
    data: Rows, s: int, b: int, gamma: float, lambda_: float, rho_bar: float, c_bar: float
) -> float:
    """rho_s (r_s + gamma v_{s+1} - V(x_s))."""
    if data.ignored[s, b]:
        return 0.0
    successor = data.next_values[s, b]
    if len(window(data, s, b)) > 1:
        successor = vtrace_target(data, s + 1, b, gamma, lambda_, rho_bar, c_bar)
    bootstrap = 0.0 if data.terminated[s, b] else gamma * successor
    rho = min(rho_bar, np.exp(data.log_rhos[s, b]))
    return rho * (data.rewards[s, b] + bootstrap - data.values[s, b])


def per_row(data: Rows, equation, *arguments) -> np.ndarray:
    """`equation` evaluated at every row: [T, B]."""
    steps, envs = data.shape
    return np.array(
        [[equation(data, t, b, *arguments) for b in range(envs)] for t in range(steps)]
    ).reshape(steps, envs)


CORRECTIONS = get_args(Correction)


def row_weights(kind: str, log_rhos: list[float]) -> list[float]:
    """What each counted row's gradient is multiplied by, with the default constants."""
    ratios, inside = [np.exp(each) for each in log_rhos], range(len(log_rhos))
    if kind == "m2po":
        kept = sorted(inside, key=lambda row: abs(log_rhos[row]))
        while kept and np.mean([log_rhos[row] ** 2 for row in kept]) > 0.04:
            kept.pop()
        return [ratios[row] * (row in kept) for row in inside]
    rules = {
        "decoupled": lambda u: u,
        "tis": lambda u: min(u, 2.0),
        "icepop": lambda u: u if 0.5 <= u <= 5.0 else 0.0,
        **dict.fromkeys(("vtrace", "one_step", "ess"), lambda u: min(u, 1.0)),
    }
    return [rules.get(kind, lambda u: 1.0)(ratio) for ratio in ratios]


TRANSITIONS = 6


def transitions(spec) -> dict[str, torch.Tensor]:
    """A batch from a replay, for vectors of three and any actions; two of its windows end."""
    random = np.random.default_rng(1)
    if spec.action.kind == "discrete":
        action = random.integers(0, spec.action.sizes[0], TRANSITIONS)
    else:
        action = random.uniform(-1, 1, (TRANSITIONS, 2)).astype(np.float32)
    arrays = {
        "observation": random.standard_normal((TRANSITIONS, 3)).astype(np.float32),
        "next_observation": random.standard_normal((TRANSITIONS, 3)).astype(np.float32),
        "action": action,
        "reward": (3 * random.standard_normal(TRANSITIONS)).astype(np.float32),
        "discount": np.array([0.9, 0.9, 0.0, 0.81, 0.9, 0.0], np.float32),
        "weight": random.uniform(0.1, 1.0, TRANSITIONS).astype(np.float32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def h(x, epsilon: float = 1e-3):
    """R2D2's rescaling of values."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x


def h_inverse(x, epsilon: float = 1e-3):
    root = np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon))
    return np.sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)


def ppo_advantage(
    data: Rows, s: int, b: int, gamma, lambda_, rho_bar, c_bar, whole_trace=False
) -> float:
    """The TD error plus gamma lambda (v - V) of the next row of the same episode."""
    inside = window(data, s, b)
    if not inside:
        return 0.0
    advantage = td(data, s, b, gamma)
    if len(inside) > 1:
        target = vtrace_target(data, s + 1, b, gamma, lambda_, rho_bar, c_bar)
        advantage += gamma * (1.0 if whole_trace else lambda_) * (target - data.values[s + 1, b])
    return advantage
