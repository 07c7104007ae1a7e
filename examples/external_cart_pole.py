# SPDX-License-Identifier: Apache-2.0
"""A simulator that drives the loop: needs gymnasium and veldt-client, but no torch.

veldt train seed_rl --env external:127.0.0.1:5000 --target-return 475
python examples/external_cart_pole.py 127.0.0.1:5000
"""

import sys
from contextlib import suppress

import gymnasium
from veldt_client import PolicyClient

envs = [gymnasium.make("CartPole-v1") for _ in range(16)]
spaces = envs[0].observation_space, envs[0].action_space
with PolicyClient(sys.argv[1], len(envs), *spaces) as policy, suppress(ConnectionError):
    actions = policy.act([env.reset()[0] for env in envs])
    while True:  # until the run has ended, and with it the server
        steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        last, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        observations = [
            env.reset()[0] if step[2] or step[3] else step[0]
            for env, step in zip(envs, steps, strict=True)
        ]
        actions = policy.act(observations, rewards, terminated, truncated, last)
