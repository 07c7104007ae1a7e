# SPDX-License-Identifier: Apache-2.0
"""R2D2: rescaled n-step double Q-learning on replayed sequences, and their priorities.

Kapturowski et al. 2019, section 2.3; h and its inverse are Pohlen et al. 2018's. The stored
recurrent state is old, so both networks first run over the burn-in rows without gradient, and
learn from the rows after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from veldt.losses import Loss, LossOptions, Tensors
from veldt.losses.q_learning import QLoss, bootstrap_values, chosen, squared, weighted_mean
from veldt.losses.returns import n_step_returns
from veldt.losses.target_network import TargetNetwork, WithTarget
from veldt.losses.trajectories import TrajectoryReader
from veldt.networks import Network, NetworkOptions
from veldt.options.checked import Count, CountOrNone, Fraction
from veldt.options.groups import REPLAY_OPTIONS
from veldt.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, EnvironmentSpec

_PER_SEQUENCE = ("age", "item_id", "weight")
EPSILON = 1e-3


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, written without cancellation near 0."""
    return x / ((x.abs() + 1.0).sqrt() + 1.0) + epsilon * x


def inverse_rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

    With w the term that is squared, w - 1 = 2|x| / (root + 1 + 2 epsilon). The code uses this form
    because the printed one cancels: near 0 it has no correct digit left in float32.
    """
    size = x.abs()
    root = (1.0 + 4.0 * epsilon * (size + 1.0 + epsilon)).sqrt()
    slope = 2.0 / (root + 1.0 + 2.0 * epsilon)
    return x * slope * (2.0 + size * slope)


@torch.no_grad()
def sequence_targets(
    rewards: Tensor,
    next_q_online: Tensor,
    next_q_target: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    ignored: Tensor,
    gamma: float,
    n: int,
    next_action_mask: Tensor | None = None,
    epsilon: float = EPSILON,
) -> Tensor:
    """y = h(sum_{k<m} gamma^k r_{t+k} + gamma^m h^-1(Q(s_{t+m}, a*; theta-))), [T, B].

    `next_q_*` and `next_action_mask` [T, B, A] belong to each row's true successor; a* is what the
    online network prefers; the rest is [T, B]. Ends and row T shorten a window as in
    `n_step_returns`. Ignored rows give 0.
    """
    bootstrap = bootstrap_values(next_q_online, next_q_target, True, next_action_mask)
    next_values = inverse_rescale(bootstrap, epsilon)
    returns = n_step_returns(rewards, next_values, terminated, truncated, ignored, gamma, n)
    return rescale(returns, epsilon)


def sequence_loss(
    q: Tensor,
    action: Tensor,
    targets: Tensor,
    valid: Tensor,
    importance_weights: Tensor | None = None,
) -> QLoss:
    """Mean over sequences of w sum_t (y_t - Q_t)^2 / 2, and the TD errors [T, B].

    `q` is [T, B, A], `importance_weights` [B], the rest [T, B]; rows that are not valid give 0.
    """
    td = torch.where(valid, targets.detach() - chosen(q, action), 0.0)
    return QLoss(weighted_mean(squared(td).sum(0), importance_weights), td.detach())


def sequence_priority(abs_td: Tensor, valid: Tensor, eta: float = 0.9) -> Tensor:
    """p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t| over valid rows: [T, B] -> [B].

    A sequence without a valid row has priority 0.
    """
    sizes = torch.where(valid, abs_td, 0.0)
    mean = sizes.sum(0) / valid.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1.0 - eta) * mean


@dataclass(frozen=True)
class R2D2Options(LossOptions):
    """What a sequence is, and how its errors are weighed."""

    n_step: Count = 5
    """Rewards summed before the target bootstraps."""
    burn_in_steps: CountOrNone = 10
    """Rows that only bring the recurrent state up to date."""
    unroll_steps: Count = 20
    """Rows of a sequence that are learned from."""
    target_period_updates: Count = 50
    """Updates between two copies of the network into the target network."""
    priority_eta: Annotated[Fraction, REPLAY_OPTIONS] = 0.9
    """Weight of a sequence's largest error in its priority; the rest is the mean's."""

    def network_options(self, shape: NetworkOptions, spec: EnvironmentSpec) -> NetworkOptions:
        """A dueling network with memory; on images with the paper's size and inputs."""
        shape = replace(super().network_options(shape, spec), dueling=True)
        if shape.recurrent == "none":
            shape = replace(shape, recurrent="lstm")
        if any(leaf.kind == "image" for leaf in spec.observation):
            shape = replace(shape, recurrent_size=512, last_action_and_reward=True)
        return shape


@dataclass(eq=False)
class R2D2(WithTarget):
    """Loss over a batch of sequences [burn-in + unroll + 1, B]; owns the target network."""

    options: R2D2Options

    def open(self, network: Network) -> None:
        super().open(network)
        self._target = TargetNetwork(network, self.options.target_period_updates)
        self._reader = TrajectoryReader(network)
        self._target_reader = TrajectoryReader(self._target.network)

    def __call__(self, batch: Tensors) -> Loss:
        batch = _with_last_inputs(batch)
        burn_in, options = self.options.burn_in_steps, self.options
        online = after_burn_in(self._network, batch, burn_in)
        outputs, states = self._reader.unroll(online)
        q = outputs.q_values
        action, ignored = online["action"][:-1], online["ignored"][:-1]
        targets = sequence_targets(
            online["reward"][:-1] * self._network.reward_scale(),
            self._reader.following(online, q, states, "q_values"),
            self._next_target_q(after_burn_in(self._target.network, batch, burn_in)),
            online["terminated"][:-1],
            online["truncated"][:-1],
            ignored,
            options.gamma,
            options.n_step,
            online[ACTION_MASK][1:] if ACTION_MASK in online else None,
        )
        loss = sequence_loss(q[:-1], action, targets, ~ignored, batch.get("weight"))
        errors = loss.td.abs()
        metrics = {"td": errors.mean(), "value": q.detach().mean(), "q": loss.loss}
        priorities = sequence_priority(errors, ~ignored, options.priority_eta)
        return Loss(loss.loss, metrics, priorities=priorities)

    @torch.no_grad()
    def _next_target_q(self, batch: Tensors) -> Tensor:
        outputs, states = self._target_reader.unroll(batch)
        return self._target_reader.following(batch, outputs.q_values, states, "q_values")


def after_burn_in(network: Network, batch: Tensors, burn_in: int) -> Tensors:
    """The rows after burn-in, with the state that `network` has reached by then. No gradient."""
    if not burn_in:
        return batch
    names = [f"state.{name}" for name in network.state_fields()]
    rows = [name for name in batch if name not in names and name not in _PER_SEQUENCE]
    head = {name: batch[name][:burn_in] for name in rows}
    with torch.no_grad():
        _, states = network.unroll(head, tuple(batch[name] for name in names), head["first"])
    tail = {name: batch[name][burn_in:] for name in rows}
    return tail | {name: state[-1] for name, state in zip(names, states, strict=True)}


def _with_last_inputs(batch: Tensors) -> Tensors:
    """A replay keeps of the bootstrap row what was seen, not what was done just before it."""
    if LAST_ACTION not in batch:
        return batch
    completed = dict(batch)
    for name, source in ((LAST_ACTION, "action"), (LAST_REWARD, "reward")):
        completed[name] = batch[name].clone()
        completed[name][-1] = batch[source][-2]
    return completed
