# SPDX-License-Identifier: Apache-2.0
"""The price tag of the abstraction: one actor and one learner process over shared tensors, by hand.

Nothing of the framework is used, only torch and Gymnasium. Same environment, network, V-trace, Adam
and constants as `veldt train impala`; see abstraction_cost.py for the comparison.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

NUM_BUFFERS, GAMMA, LEARNING_RATE, MAX_GRAD_NORM = 2, 0.99, 2e-3, 0.5
VALUE_COEFFICIENT, ENTROPY_COEFFICIENT = 0.5, 0.01


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    return nn.Sequential(*layers)  # two logits and the value from one matrix product


def make_buffers(steps: int, envs: int) -> dict[str, Tensor]:
    def shared(dtype: torch.dtype, rows: int, *shape: int) -> Tensor:
        return torch.zeros((NUM_BUFFERS, rows, envs, *shape), dtype=dtype).share_memory_()

    buffers = {name: shared(torch.bool, steps) for name in ("terminated", "truncated", "ignored")}
    buffers["observation"] = shared(torch.float32, steps + 1, 4)
    buffers["logits"] = shared(torch.float32, steps, 2)
    buffers["action"], buffers["reward"] = shared(torch.int64, steps), shared(torch.float32, steps)
    return buffers


@torch.inference_mode()
def act(steps: int, envs: int, buffers: dict[str, Tensor], weights: Tensor, lock, free, full):
    """Fill the buffers in turn, each with the newest weights; ends when it is terminated."""
    torch.set_num_threads(1)
    model, own = make_model(), torch.empty_like(weights)
    vector_to_parameters(own, model.parameters())
    arrays = {name: tensor.numpy() for name, tensor in buffers.items()}
    environment = gymnasium.make_vec("CartPole-v1", num_envs=envs)
    arrays["observation"][-1, -1] = environment.reset(seed=1)[0]
    ended, noise, slot = torch.zeros(envs, dtype=torch.bool).numpy(), torch.empty(envs, 2), 0
    while True:
        free.acquire()
        with lock:
            own.copy_(weights)
        rows = {name: array[slot] for name, array in arrays.items()}
        rows["observation"][0] = arrays["observation"][slot - 1, -1]
        for t in range(steps):
            logits = model(buffers["observation"][slot, t])[:, :2]
            action = (logits - noise.exponential_().log_()).argmax(1).numpy()
            observation, reward, terminated, truncated, _ = environment.step(action)
            rows["action"][t], rows["logits"][t], rows["reward"][t] = action, logits, reward
            rows["terminated"][t], rows["truncated"][t] = terminated, truncated
            rows["ignored"][t], rows["observation"][t + 1] = ended, observation
            ended = terminated | truncated  # the next row only resets; its action is not used
        full.release()
        slot = (slot + 1) % NUM_BUFFERS


def loss_of(model: nn.Sequential, batch: dict[str, Tensor], valid: Tensor) -> Tensor:
    outputs, action = model(batch["observation"]), batch["action"].unsqueeze(-1)
    log_probabilities, values = log_softmax(outputs[:-1, :, :2], -1), outputs[..., 2]
    log_pi = log_probabilities.gather(-1, action).squeeze(-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    with torch.no_grad():
        log_mu = log_softmax(batch["logits"], -1).gather(-1, action).squeeze(-1)
        rho = (log_pi - log_mu).exp_().clamp_(max=1.0).mul_(valid)
        discount = GAMMA * ~batch["terminated"]
        td = batch["reward"] + discount * values[1:] - values[:-1]
        discount *= ~batch["truncated"] & valid  # a truncated row bootstraps, but ends the trace
        corrections, decay = rho * td, rho * discount
        for t in reversed(range(len(corrections) - 1)):
            corrections[t].addcmul_(decay[t], corrections[t + 1])
        td[:-1] += discount[:-1] * corrections[1:]
        advantage, target = rho * td, corrections + values[:-1]
    value_error = 0.5 * (target - values[:-1]).square()
    terms = VALUE_COEFFICIENT * value_error - log_pi * advantage - ENTROPY_COEFFICIENT * entropy
    return (terms * valid).sum() / valid.sum()


def learn(arguments: argparse.Namespace) -> dict[str, float]:
    model, steps, envs = make_model(), arguments.steps, arguments.envs
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, eps=1e-5, fused=True)
    buffers = make_buffers(steps, envs)
    weights = parameters_to_vector(model.parameters()).detach().share_memory_()
    lock, free, full = mp.Lock(), mp.Semaphore(NUM_BUFFERS), mp.Semaphore(0)
    shared = (steps, envs, buffers, weights, lock, free, full)
    actor = mp.Process(target=act, args=shared, daemon=True)
    actor.start()
    torch.set_num_threads(1)
    slot, trained, ended, measured_from = 0, 0, 0, float("inf")
    begun = time.perf_counter()
    while (now := time.perf_counter()) < measured_from + arguments.seconds:
        if now > begun + arguments.warm_up_seconds and measured_from == float("inf"):
            trained, ended, measured_from = 0, 0, now
        full.acquire()
        batch = {name: buffer[slot] for name, buffer in buffers.items()}
        valid = ~batch["ignored"]
        optimizer.zero_grad()
        loss_of(model, batch, valid).backward()
        trained += int(valid.sum())
        ended += int((batch["terminated"] | batch["truncated"])[valid].sum())
        free.release()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        with lock:
            weights.copy_(parameters_to_vector(model.parameters()).detach())
        slot = (slot + 1) % NUM_BUFFERS
    actor.terminate()
    rate = trained / (now - measured_from)
    return {"steps_per_second": rate, "mean_episode_length": trained / max(ended, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="length of a trajectory")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up-seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    print(json.dumps({"envs": arguments.envs, "steps": arguments.steps, **learn(arguments)}))
