# SPDX-License-Identifier: Apache-2.0
"""A simulator that drives: CartPole asks a run what to do, and the run learns. Needs grpcio, protobuf and gymnasium.

veldt train seed_rl --env external:127.0.0.1:5000 --target-return 475
python examples/external_cart_pole.py 127.0.0.1:5000
"""

import sys

import gymnasium

from veldt.client import PolicyClient

envs = [gymnasium.make("CartPole-v1") for _ in range(16)]
policy = PolicyClient(sys.argv[1], len(envs), envs[0].observation_space, envs[0].action_space, give_up_seconds=20)
actions = policy.act([env.reset()[0] for env in envs])
while True:
    steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
    finals, rewards, terminated, truncated, _ = zip(*steps, strict=True)
    ended = [a or b for a, b in zip(terminated, truncated, strict=True)]
    observations = [env.reset()[0] if end else last for env, end, last in zip(envs, ended, finals, strict=True)]
    try:
        actions = policy.act(observations, rewards, terminated, truncated, finals)
    except ConnectionError:
        break  # the run has ended
