# SPDX-License-Identifier: Apache-2.0
"""Plays an exported policy with ONNX Runtime and NumPy alone: neither torch nor Veldt is needed.

veldt export runs/pole --out pole.onnx
python examples/play_onnx.py pole.onnx
"""

import json
import math
import sys

import numpy as np
import onnxruntime


class Policy:
    """Any exported policy, for one environment: state, masks and rewards go in where it asks."""

    def __init__(self, path):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.metadata = json.loads(self._session.get_modelmeta().custom_metadata_map["veldt"])
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.reset()

    def reset(self):
        """An episode begins."""
        self._memory = {
            name: np.zeros((1, *entry["shape"]), entry["dtype"])
            for name, entry in self.metadata["inputs"].items()
            if name.startswith("state.")
        }
        self._first = True

    def act(self, **inputs):
        """The action for inputs such as observation=..., action_mask=..., reward=..."""
        known = self.metadata["inputs"]
        rows = {name: np.asarray(row, known[name]["dtype"])[None] for name, row in inputs.items()}
        if "first" in known:
            rows["first"] = np.array([self._first])
        said = self._session.run(self._outputs, {**rows, **self._memory})
        outputs = dict(zip(self._outputs, said, strict=True))
        self._memory = {name: outputs[f"next_{name}"] for name in self._memory}
        self._first = False
        return outputs["action"][0]


def cart_pole(state, action):
    """CartPole's equations: the next state, and whether the pole has fallen."""
    _, x_dot, theta, theta_dot = state
    force = 10.0 if action == 1 else -10.0
    sine, cosine = math.sin(theta), math.cos(theta)
    push = (force + 0.05 * theta_dot**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    shift = push - 0.05 * turn * cosine / 1.1
    state = np.array([x_dot, shift, theta_dot, turn]) * 0.02 + state
    return state, abs(state[0]) > 2.4 or abs(state[2]) > 0.209


def main():
    policy = Policy(sys.argv[1])
    print(policy.metadata["architecture"], policy.metadata["env"], policy.metadata["env_steps"])
    random, steps = np.random.default_rng(0), []
    for _ in range(10):
        policy.reset()
        state, fallen, count = random.uniform(-0.05, 0.05, 4), False, 0
        while not fallen and count < 500:
            state, fallen = cart_pole(state, policy.act(observation=state))
            count += 1
        steps.append(count)
    print(f"10 episodes of {np.mean(steps):.1f} steps on average")


if __name__ == "__main__":
    main()
