# SPDX-License-Identifier: Apache-2.0
"""Several policies for the named agents of a PettingZoo game."""

import numpy as np
import pytest
import torch

import veldt
from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError
from veldt.networks import NetworkOptions, acting_step, make_network
from veldt.types import POLICY

pytest.importorskip("pettingzoo")

from small_pettingzoo import Countdown

GAME, EACH_ITS_OWN = f"pettingzoo:{__name__}", "first=agent_0;second=agent_1"


class Opposites(Countdown):
    """Both agents see the same; action 1 is right for the first one, 2 for the second."""

    def __init__(self):
        super().__init__(lives=(4, 4))

    def step(self, actions):
        seen, rewards, *others = super().step(actions)
        right = dict(zip(self.possible_agents, (1, 2), strict=True))
        return seen, {agent: float(actions[agent] == right[agent]) for agent in rewards}, *others

    def seen(self):
        return {agent: np.ones(2, np.float32) for agent in self.agents}


parallel_env = Opposites


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_each_policy_learns_its_own_answer(backend, tmp_path):
    """Also after resume, in evaluations, which are rounded up to both, and in acting."""
    result = veldt.train(
        "impala", GAME, wrappers={"policies": EACH_ITS_OWN}, backend=backend, quiet=True,
        total_env_steps=6000, evaluation_episodes=3, run_dir=tmp_path / "run",
    )  # fmt: skip
    best = {name: {"mean": 4.0, "normalized": None} for name in ("first", "second")}
    assert result.evaluation_by_task == best
    resumed = veldt.resume(tmp_path / "run", total_env_steps=7000, quiet=True)
    assert resumed.evaluation_by_task == best
    assert veldt.evaluate(tmp_path / "run", episodes=5).by_task == best
    assert '"info/return/second": ' in (tmp_path / "run" / "metrics.jsonl").read_text()
    policy, seen = veldt.load(tmp_path / "run"), np.ones((2, 2), np.float32)
    assert policy.act({"observation": seen, "policy": np.array([1, 0])}).tolist() == [2, 1]


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_rows_reach_only_their_own_policy(recurrent):
    spec = EnvironmentFactory(GAME, policies=EACH_ITS_OWN).spec()
    config = NetworkOptions(normalize_observations=True, normalize_values=True, recurrent=recurrent)
    network = make_network(config, spec, "policy_value", 0)
    rows = {"observation.observation": torch.rand(3, 4, 2), "action_mask": torch.ones(3, 4, 2) > 0}
    rows[POLICY] = torch.tensor([0, 1, 0, 1]).expand(3, 4)
    state, first = network.initial_state(4), torch.zeros(3, 4, dtype=torch.bool)
    outputs, _ = network.unroll(rows, state, first)
    for number, own in enumerate(network.policies):
        alone, _ = own.unroll(rows, state, first)
        torch.testing.assert_close(outputs.value[:, number::2], alone.value[:, number::2])
    (outputs.value[:, ::2].sum() + outputs.logits[:, ::2, 0].sum()).backward()
    moved = [sum(w.grad.abs().sum() for w in own.parameters()) for own in network.policies]
    assert moved[0] > 0.0
    assert moved[1] == 0.0
    network.update_statistics(rows, rows[POLICY] == 1)
    assert [own.normalizer.moments[0].count for own in network.policies] == [0, 6]
    before = network.unroll(rows, state, first)[0]
    network.update_value_statistics(torch.arange(12.0).reshape(3, 4), ~first)
    torch.testing.assert_close(network.unroll(rows, state, first)[0], before, atol=1e-4, rtol=1e-4)
    one = {name: entry[0] for name, entry in rows.items()}
    with torch.no_grad():
        ours, theirs = (
            step(one, state, first[0])[0] for step in (acting_step(network), network.step)
        )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("architecture", "env", "policies", "words"),
    [
        ("ppo", GAME, "all=*", "3 environments .* multiple of 2"),
        ("ppo", GAME, "first=agent_0", "no policy has agent_1; add it"),
        ("ppo", GAME, "first=*;second=agent_1", "agent_1 is named twice"),
        ("ppo", GAME, "first=agent_O;second=agent_1", "no agent 'agent_O'; did you mean"),
        ("ppo", "CartPole-v1", EACH_ITS_OWN, "no named agents; leave policies out"),
        ("dqn", GAME, EACH_ITS_OWN, "train ppo or impala"),
    ],
)
def test_what_cannot_be_ends_with_one_line(architecture, env, policies, words):
    envs = 3 if policies == "all=*" else 2
    with pytest.raises(ConfigurationError, match=words):
        veldt.train(architecture, env, wrappers={"policies": policies}, envs_per_actor=envs)
