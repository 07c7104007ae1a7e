# SPDX-License-Identifier: Apache-2.0
"""veldt.load: one observation, a batch and the evaluator get the same actions, for every head."""

import json

import gymnasium
import numpy as np
import pytest
from policies import CASES, batches, mask_of, policy_of, rows_of

import veldt
from veldt.environments.spaces import described, space_from
from veldt.policy.module import remembered

SMALL = {"backend": "serial", "num_actors": 1, "envs_per_actor": 4, "evaluation_episodes": 0}
WIDTH = 4


@pytest.mark.parametrize("name", CASES)
def test_one_observation_and_a_batch_agree(name):
    """Some steps of four episodes side by side and one by one."""
    policy, random = policy_of(name), np.random.default_rng(0)
    together = policy.initial_state(WIDTH)
    alone = [policy.initial_state() for _ in range(WIDTH)]
    for step, batch in enumerate(batches(policy, 6)):
        mask = mask_of(policy, random, WIDTH)
        reward = random.standard_normal(WIDTH).astype(np.float32)
        if step == 3:
            together.reset([1])
            alone[1].reset()
        actions = policy.act(batch, together, mask, reward=reward)
        masks = [None] * WIDTH if mask is None else mask
        each = zip(rows_of(policy, batch), alone, masks, reward, strict=True)
        singles = [policy.act(row, own, m, reward=r) for row, own, m, r in each]
        assert all(policy.action_space.contains(single) for single in singles)
        np.testing.assert_allclose(actions, np.stack(singles), atol=1e-5)
        assert actions.dtype == policy.action_space.dtype


def test_a_gradient_passes_the_module():
    """That its actions are the policy's is checked with every export."""
    module = policy_of("lstm").module()
    known = module.inputs(WIDTH)
    outputs = module(known)
    assert set(remembered(outputs)) == {key for key in known if key.startswith("state.")}
    outputs["logits"].sum().backward()
    assert any(weight.grad.abs().sum() > 0 for weight in module.parameters())


@pytest.mark.parametrize("name", ["discrete", "masked", "tanh", "q", "sac"])
def test_drawn_actions_are_allowed_and_vary(name):
    policy, seen = policy_of(name), set()
    [batch] = batches(policy, 1)
    mask = mask_of(policy, np.random.default_rng(0), WIDTH)
    for _ in range(60):
        actions = policy.act(batch, mask=mask, deterministic=False)
        assert all(policy.action_space.contains(action) for action in actions)
        seen.add(actions.tobytes())
    assert len(seen) > 1
    if name == "q":
        drawn = {int(policy.act(batch, mask=mask, deterministic=False)[0]) for _ in range(200)}
        assert drawn <= set(np.flatnonzero(mask[0]))


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("discrete", lambda p: p.act(np.zeros(5)), r"shape \(5,\), but .* trained with \(4,\)"),
        ("discrete", lambda p: p.act(np.zeros((2, 4, 4))), "one more axis"),
        ("discrete", lambda p: p.act(["a", "b", "c", "d"]), "not made of numbers"),
        ("nested", lambda p: p.act({"gear": 1}), "no entry 'camera'"),
        ("nested", lambda p: p.act(3.0), "no entry 'camera'"),
        ("lstm", lambda p: p.act(np.zeros(4)), r"policy.initial_state\(\)"),
        ("lstm", lambda p: p.act(np.zeros((2, 4)), p.initial_state()), r"initial_state\(2\)"),
        ("masked", lambda p: p.act(np.zeros(4), mask=np.ones(3)), "3 entries"),
        ("masked", lambda p: p.act(np.zeros(4), mask=np.zeros(5)), "allows no action"),
        ("tanh", lambda p: p.act(np.zeros(4), mask=np.ones(3)), "no mask"),
        ("td3", lambda p: p.act(np.zeros((20, 20, 1))), "uint8"),
        ("nested", lambda p: p.act({**batches(p, 1)[0], "gear": np.zeros(4, int)}), "outside of"),
    ],
)
def test_what_does_not_fit_is_one_line(name, call, message):
    with pytest.raises(veldt.ConfigurationError, match=message) as refusal:
        call(policy_of(name))
    assert "\n" not in str(refusal.value)


def test_the_last_reward_is_asked_for():
    policy = policy_of("r2d2")
    state, [batch] = policy.initial_state(WIDTH), batches(policy, 1)
    policy.act(batch, state)
    with pytest.raises(veldt.ConfigurationError, match=r"what env.step returned as reward"):
        policy.act(batch, state)


def hand_played(policy, env_id: str, episodes: int, seed: int) -> list[float]:
    """What a user would write: one episode after the other in plain Gymnasium environments."""
    returns = []
    for episode in range(episodes):
        env = gymnasium.make(env_id)
        state, total, over = policy.initial_state(), 0.0, False
        observation, _ = env.reset(seed=seed + episode)
        reward = 0.0
        while not over:
            action = policy.act(observation, state, reward=reward)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


RUNS = {
    **{name: (name, "CartPole-v1", {}) for name in ("dqn", "impala", "r2d2")},
    "lstm": ("impala", "CartPole-v1", {"recurrent": "lstm"}),
    "sac": ("sac", "Pendulum-v1", {}),
    "td3": ("td3", "Pendulum-v1", {}),
    "dpg": ("apex", "Pendulum-v1", {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_policy_plays_what_the_evaluator_plays(tmp_path, name):
    architecture, env, own = RUNS[name]
    path = tmp_path / "run"
    options = {"total_env_steps": 60, "run_dir": str(path)}
    options["wrappers"] = {"vectorization": "in_process"}
    veldt.train(architecture, env, **options, **SMALL, **own)
    policy = veldt.load(path)
    assert (policy.architecture, policy.env) == (architecture, env)
    evaluated = veldt.evaluate(path, episodes=2, seed=7)
    np.testing.assert_allclose(hand_played(policy, env, 2, 7), evaluated.returns, rtol=1e-4)


def test_a_policy_needs_no_environment(tmp_path, monkeypatch):
    (tmp_path / "house.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    veldt.train("impala", "house:make", total_env_steps=60, run_dir="run", **SMALL)
    (tmp_path / "house.py").unlink()
    policy = veldt.load("run", checkpoint="last")
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert "impala on house:make" in repr(policy)


def test_spaces_survive_being_written_down():
    for _, observation, action, _, _ in CASES.values():
        for space in (observation, action):
            assert space_from(json.loads(json.dumps(described(space)))) == space
    with pytest.raises(veldt.ConfigurationError, match="does not describe a space"):
        space_from({"type": "Sphere"})
