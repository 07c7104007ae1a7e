# SPDX-License-Identifier: Apache-2.0
"""Epochs and minibatches against PPO written slowly: NumPy, one row at a time, by hand derived
gradients of a linear policy and value."""

import numpy as np
import pytest
import torch
import transcriptions as slow
from network_specs import make_spec, vector

import veldt
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions, VTraceOptions
from veldt.losses.ppo import PPO, Appo, ClippedOptions, scale_by_divergence
from veldt.losses.trajectories import INDEX, TrajectoryReader, select_rows
from veldt.networks import FlatParameters, NetworkOptions, make_network
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.options.fields import changed

STEPS, ENVS, ACTIONS, SIZE = 5, 4, 3, 3
SPEC = make_spec(vector(SIZE))
RATE = 0.1
NEWEST = 10
"""The learner's version; the rows of the first step are too old for `drop`."""


def identity(spec):
    return torch.nn.Identity()


def batch_of(states: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    rows = (STEPS + 1, ENVS)
    batch = {
        "observation": random.normal(size=(*rows, SIZE)).astype(np.float32),
        "action": random.integers(0, ACTIONS, rows),
        "reward": random.normal(size=rows).astype(np.float32),
        "behaviour_logits": random.normal(size=(*rows, ACTIONS)).astype(np.float32),
        "first": np.zeros(rows, bool),
        "ignored": np.zeros(rows, bool),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "parameter_version": np.full((STEPS + 1, 1), NEWEST - 8),
    }
    batch["parameter_version"][0] -= 1
    batch["terminated"][1, 0] = batch["ignored"][2, 0] = batch["first"][3, 0] = True
    batch["truncated"][2, 1] = batch["ignored"][3, 1] = batch["first"][4, 1] = True
    for name in states:
        batch[name] = random.normal(size=(ENVS, 8)).astype(np.float32)
    return batch


def tensors(batch):
    return {name: torch.from_numpy(array.copy()) for name, array in batch.items()}


def linear_network():
    network = make_network(NetworkOptions(encoder=identity), SPEC, "policy_value", 0)
    with torch.no_grad():
        network.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return network


START = changed(
    ClippedOptions(),
    trace_lambda=0.95,
    entropy_coefficient=0.0,
    epochs=4,
    minibatches=4,
    normalize_values=True,
)
"""Several passes, as ppo and sample_factory take them by default."""


def opened(network, options, seed=0):
    objective = PPO(options)
    objective.seed = seed
    objective.open(network)
    return objective


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


class SlowPPO:
    """Weights [A + 1, S] and biases of a linear network; the last row is the value."""

    def __init__(self, network, settings: ClippedOptions, masks: bool = True) -> None:
        self.masks = masks
        self.weight = network.head.weight.detach().numpy().astype(np.float64)
        self.bias = network.head.bias.detach().numpy().astype(np.float64)
        self.settings = settings

    def outputs(self, observation):
        both = self.weight @ observation + self.bias
        return log_softmax(both[:ACTIONS]), both[ACTIONS]

    def log_rho(self, batch, t, b):
        log_mu = log_softmax(batch["behaviour_logits"][t, b].astype(np.float64))
        return (self.outputs(batch["observation"][t, b])[0] - log_mu)[batch["action"][t, b]]

    def counted(self, batch):
        young = NEWEST - batch["parameter_version"][:-1] <= 8
        return ~batch["ignored"][:-1] & (young | (self.settings.correction != "drop"))

    def targets(self, batch, whole_trace=False):
        """Advantages and targets; V-trace's advantages bootstrap from v, PPO's from a
        lambda-return."""
        s, log_rhos = self.settings, np.zeros((STEPS, ENVS))
        values = np.array([[self.outputs(x)[1] for x in row] for row in batch["observation"]])
        if s.correction not in ("none", "epsilon", "one_step", "drop"):
            for t, b in np.ndindex(STEPS, ENVS):
                log_rhos[t, b] = self.log_rho(batch, t, b)
        flags = [batch[name][:-1] for name in slow.FLAGS]
        data = slow.Rows(batch["reward"][:-1], values[:-1], values[1:], log_rhos, *flags)
        traces = (s.gamma, s.trace_lambda, 1.0, 1.0)
        advantages = slow.per_row(data, slow.ppo_advantage, *traces, whole_trace)
        return advantages, slow.per_row(data, slow.vtrace_target, *traces)

    def weights(self, batch):
        weights, rows = np.zeros((STEPS, ENVS)), np.nonzero(self.counted(batch))
        log_rhos = [self.log_rho(batch, t, b) for t, b in zip(*rows, strict=True)]
        weights[rows] = slow.row_weights(self.settings.correction, log_rhos)
        return weights

    def step_scale(self, batch, rows):
        """The share of a whole step; for `drop` that of these rows that are young."""
        counted, valid = self.counted(batch), ~batch["ignored"][:-1]
        if self.settings.correction == "drop":
            own = tuple(zip(*rows, strict=True)) if self.masks else ...
            return counted[own].sum() / valid[own].sum()
        ratios = [np.exp(self.log_rho(batch, t, b)) for t, b in np.argwhere(counted)]
        size = sum(ratios) ** 2 / sum(ratio**2 for ratio in ratios)
        return np.sqrt(size / len(ratios)) if self.settings.correction == "ess" else 1.0

    def gradient(self, rows, batch, advantages, goals, weights, old_values=None):
        """Mean over valid rows of the loss's gradient, and the loss."""
        s = self.settings
        weight, bias, loss = np.zeros_like(self.weight), np.zeros_like(self.bias), 0.0
        clip, valid = 0.2, self.counted(batch)
        counted = [(t, b) for t, b in rows if valid[t, b]]
        for t, b in counted:
            x, action = batch["observation"][t, b].astype(np.float64), batch["action"][t, b]
            log_pi, value = self.outputs(x)
            centre = log_softmax((self.start[0] @ x + self.start[1])[:ACTIONS])
            if s.correction == "clip":
                centre = log_softmax(batch["behaviour_logits"][t, b].astype(np.float64))
            advantage = weights[t, b] * advantages[t, b]
            ratio = np.exp((log_pi - centre)[action])
            bounded = min(max(ratio, 1 / (1 + clip)), 1 + clip)
            loss -= min(ratio * advantage, bounded * advantage)
            slopes, pi = np.zeros(ACTIONS + 1), np.exp(log_pi)
            if ratio * advantage <= bounded * advantage:
                slopes[:ACTIONS] = -ratio * advantage * (np.eye(ACTIONS)[action] - pi)
            entropy = -(pi * log_pi).sum()
            slopes[:ACTIONS] += s.entropy_coefficient * pi * (log_pi + entropy)
            loss -= s.entropy_coefficient * entropy
            error = value - goals[t, b]
            loss += s.value_coefficient * error**2 / 2
            if old_values is not None:  # a value may move by 0.2 only
                old = old_values[t, b]
                near = old + min(max(value - old, -0.2), 0.2) - goals[t, b]
                error = error if near**2 <= error**2 else 0.0
            slopes[ACTIONS] = s.value_coefficient * error
            weight += np.outer(slopes, x)
            bias += slopes
        count = max(1, len(counted))
        return weight / count, bias / count, loss / count

    def learn(self, batch, orders):
        self.start = (self.weight.copy(), self.bias.copy())
        advantages, goals = self.targets(batch)
        chosen = advantages[self.counted(batch)]
        advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-5)
        weights, losses = self.weights(batch), []
        places = [[(i // ENVS, i % ENVS) for i in order] for order in orders]
        scales = [self.step_scale(batch, rows) for rows in places]
        for rows, scale in zip(places, scales, strict=True):
            weight, bias, loss = self.gradient(rows, batch, advantages, goals, weights)
            self.weight -= RATE * scale * weight
            self.bias -= RATE * scale * bias
            losses.append(loss)
        return losses


def learn(network, objective, batch, learning_rate=RATE):
    flat = FlatParameters(network)
    optimizer = make_optimizer(
        OptimizerOptions("sgd", learning_rate, max_grad_norm=0.0), flat.vector[: flat.num_trained]
    )
    losses = []
    for minibatch in objective.passes(tensors(batch)):
        loss = objective.after_loss(objective(minibatch))
        flat.zero_gradient()
        loss.total.backward()
        scale = float(loss.learning_rate_scale) * objective.learning_rate_scale()
        optimizer.step(flat.gradient, scale)
        losses.append(float(loss.total.detach()))
    return losses


def orders_of(seed, epochs, minibatches, places):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(places), generator=generator)
        yield from torch.from_numpy(places)[order].tensor_split(minibatches)


@pytest.mark.parametrize("masks", [False, True], ids=["left out", "masked"])
@pytest.mark.parametrize("correction", slow.CORRECTIONS)
@pytest.mark.parametrize("minibatches", [2, 3])
def test_epochs_of_minibatches_equal_slow_ppo(minibatches, correction, masks):
    """Rows that do not count are left out before the shuffling, or masked after it."""
    settings = changed(
        START,
        correction=correction,
        epochs=3,
        minibatches=minibatches,
        entropy_coefficient=0.02,
        value_coefficient=0.7,
        normalize_values=False,
        target_kl=0.0,
    )
    network, batch = linear_network(), batch_of()
    linear, objective = SlowPPO(network, settings, masks), opened(network, settings, seed=7)
    objective._masks = masks  # as on a GPU
    objective.after_update(NEWEST)
    found = learn(network, objective, batch)
    rows = np.ones((STEPS, ENVS), bool) if masks else linear.counted(batch)
    orders = orders_of(7, 3, minibatches, np.flatnonzero(rows))
    expected = linear.learn(batch, [order.tolist() for order in orders])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.head.weight.detach(), linear.weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.head.bias.detach(), linear.bias, rtol=1e-4, atol=1e-5)


def test_whole_columns_and_their_states_stay_together_with_memory():
    config = NetworkOptions(hidden_sizes=(8,), recurrent="lstm", recurrent_size=8)
    network = make_network(config, SPEC, "policy_value", 0)
    objective = opened(network, changed(START, epochs=2, minibatches=2))
    batch = batch_of(("state.hidden", "state.cell"))
    seen = []
    for part in objective.passes(tensors(batch)):
        objective.after_loss(objective(part))
        part = select_rows(part, whole_columns=True)
        assert part["observation"].shape == (STEPS, ENVS // 2, SIZE)
        for column in range(ENVS // 2):
            origin = [
                b
                for b in range(ENVS)
                if np.array_equal(part["observation"][:, column], batch["observation"][:-1, b])
            ]
            np.testing.assert_array_equal(
                part["state.cell"][column], batch["state.cell"][origin[0]]
            )
            seen.append(origin[0])
    assert sorted(seen[:ENVS]) == sorted(seen[ENVS:]) == list(range(ENVS))


def test_normalised_values_keep_while_their_scale_changes():
    network = make_network(
        NetworkOptions(hidden_sizes=(8,), normalize_values=True), SPEC, "policy_value", 0
    )
    observations = {"observation": torch.randn(50, SIZE)}
    first = torch.zeros(50, dtype=torch.bool)
    before = network.step(observations, (), first)[0].value
    targets = 300.0 + 20.0 * torch.randn(50)
    network.update_value_statistics(targets, ~first)
    after = network.step(observations, (), first)[0].value
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)
    assert float(network.value_scale()) == pytest.approx(float(targets.std(correction=0)), rel=1e-4)


def test_the_learning_rate_follows_the_divergence_and_is_resumed():
    assert scale_by_divergence(1.0, 0.021, 0.01) == pytest.approx(1 / 1.5)
    assert scale_by_divergence(1.0, 0.004, 0.01) == pytest.approx(1.5)
    assert scale_by_divergence(1.0, 0.012, 0.01) == 1.0
    assert scale_by_divergence(9.0, 0.0, 0.01) == 10.0
    network = linear_network()
    objective = opened(network, changed(START, epochs=4, minibatches=2, target_kl=1e-9))
    learn(network, objective, batch_of())
    scale = float(objective.state()["learning_rate_scale"])
    assert scale == pytest.approx(1.5**-4)
    other = opened(linear_network(), changed(START, target_kl=1e-9))
    other.load_state(objective.state())
    assert other.state() == objective.state()


def test_the_learning_rate_may_be_kept_from_rising():
    network = linear_network()
    small_steps = changed(START, epochs=2, minibatches=2, target_kl=1e9)
    objective = opened(network, changed(small_steps, max_learning_rate_scale=1.0))
    learn(network, objective, batch_of())
    assert float(objective.state()["learning_rate_scale"]) == 1.0
    objective = opened(linear_network(), small_steps)
    learn(network, objective, batch_of())
    assert float(objective.state()["learning_rate_scale"]) == pytest.approx(1.5**2)


def test_epochs_end_when_the_policy_has_changed_enough():
    network = linear_network()
    objective = opened(
        network, changed(START, epochs=9, minibatches=2, stop_kl=1e-6, target_kl=0.0)
    )
    assert len(learn(network, objective, batch_of())) == 2


@pytest.mark.parametrize("masks", [False, True], ids=["left out", "masked"])
def test_rows_that_are_too_old_do_not_count_and_shrink_the_step(masks):
    network, batch = linear_network(), batch_of()
    objective = opened(
        network, changed(START, epochs=1, minibatches=1, normalize_values=False, max_policy_lag=3)
    )
    objective.after_update(5)
    batch["parameter_version"][:3] = 2
    batch["parameter_version"][3:] = 3
    objective._masks = masks
    part = next(iter(objective.passes(tensors(batch))))
    counted = ~batch["ignored"][:-1]
    young = counted[3:].sum()
    rows = np.flatnonzero(part["valid"]) if masks else np.sort(part[INDEX])
    np.testing.assert_array_equal(rows, 3 * ENVS + np.flatnonzero(counted[3:]))
    loss = objective.after_loss(objective(part))
    assert float(loss.learning_rate_scale) == pytest.approx(young / counted.sum())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "veldt/Catch-v0"])
def test_without_lag_what_acted_is_recalled_as_the_network_would_say_it_again(
    env, monkeypatch, tmp_path
):
    """In real runs of ppo, whose trajectories have ends, time limits and normalised inputs."""
    compared = []
    recall = TrajectoryReader.recall

    def both(self, batch):
        recalled = recall(self, batch)
        with torch.no_grad():
            asked = self.evaluate(batch)
        for name in ("logits", "values", "log_probs", "log_rhos"):
            close = {"rtol": 1e-4, "atol": 1e-4}
            torch.testing.assert_close(getattr(recalled, name), getattr(asked, name), **close)
        torch.testing.assert_close(recalled.rows, asked.rows, rtol=1e-4, atol=1e-4)
        compared.append(int(batch["truncated"].sum() + batch["terminated"].sum()))
        return recalled

    monkeypatch.setattr(TrajectoryReader, "recall", both)
    veldt.train(
        "ppo",
        env=env,
        backend="serial",
        total_env_steps=12_000,
        evaluation_episodes=0,
        quiet=True,
        run_dir=str(tmp_path / "run"),
    )
    assert len(compared) >= 5
    assert sum(compared) > 0


@pytest.mark.parametrize("correction", slow.CORRECTIONS)
@pytest.mark.parametrize("kind", [ActorCritic, Appo])
def test_one_step_equals_its_transcription(kind, correction):
    """The ratio of policies stands once in the loss: V-trace's advantages come without it."""
    made = ActorCriticOptions if kind is ActorCritic else ClippedOptions
    options = changed(made(gamma=0.9, trace_lambda=0.8, entropy_coefficient=0.02))
    options = changed(options, value_coefficient=0.7, correction=correction)
    if kind is Appo:
        options = changed(options, normalize_advantages=False, value_clip=0.2)
    network, batch = linear_network(), batch_of()
    batch["behaviour_value"] = np.linspace(-1, 1, (STEPS + 1) * ENVS, dtype=np.float32)
    batch["behaviour_value"] = batch["behaviour_value"].reshape(STEPS + 1, ENVS)
    objective = kind(options)
    objective.open(network)
    objective.after_update(NEWEST)
    found = objective(next(iter(objective.passes(tensors(batch)))))
    found.total.backward()
    linear = SlowPPO(network, options)
    linear.start = (linear.weight, linear.bias)
    targets = linear.targets(batch, whole_trace=True)
    old_values = batch["behaviour_value"] if kind is Appo else None
    rows = list(np.ndindex(STEPS, ENVS))
    weight, bias, _ = linear.gradient(rows, batch, *targets, linear.weights(batch), old_values)
    np.testing.assert_allclose(network.head.weight.grad, weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.head.bias.grad, bias, rtol=1e-4, atol=1e-5)
    scale = float(found.learning_rate_scale)
    assert scale == pytest.approx(linear.step_scale(batch, rows), rel=1e-5)
    assert (scale < 1.0) == (correction in ("ess", "drop"))


def test_value_errors_are_taken_in_units_of_the_scale():
    network = make_network(
        NetworkOptions(hidden_sizes=(8,), normalize_values=True), SPEC, "policy_value", 0
    )
    batch = tensors(batch_of())
    batch["reward"] *= 30.0
    with torch.no_grad():
        outputs = network.unroll(batch, (), batch["first"])[0]
    counted = ~batch["ignored"][:-1]
    rewards = batch["reward"][:-1][counted]
    values, batch["behaviour_logits"] = outputs.value[:-1], outputs.logits
    objective = opened(network, changed(START, gamma=0.0, epochs=2, minibatches=1))
    found = objective(next(iter(objective.passes(batch)))).metrics["value"]
    scale = float(network.value_scale())
    assert scale > 5.0
    expected = 0.5 * ((values[counted] - rewards) / scale).square().mean()
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-3)


def test_only_the_epsilon_correction_puts_a_floor_under_the_policy():
    network, batch = linear_network(), tensors(batch_of())
    with torch.no_grad():
        network.head.weight[:ACTIONS].zero_()
        network.head.bias[0] = -40.0
    batch["action"].zero_()
    losses, moved = {}, {}
    for correction in ("epsilon", "none"):
        objective = ActorCritic(ActorCriticOptions(correction=correction))
        objective.open(network)
        loss = objective(batch)
        network.zero_grad()
        loss.metrics["policy"].backward()
        losses[correction] = float(loss.metrics["policy"].detach())
        moved[correction] = bool(network.head.bias.grad[:ACTIONS].any())
    assert moved == {"epsilon": False, "none": True}
    assert losses["epsilon"] / losses["none"] == pytest.approx(np.log(1e6) / 40.69, rel=1e-3)


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_vtrace_in_several_passes_takes_each_trajectory_once_per_epoch(recurrent):
    """Each part's loss is that of a batch of its columns alone, with the weights of that step."""
    config = NetworkOptions(hidden_sizes=(8,), recurrent=recurrent, recurrent_size=8)
    network = make_network(config, SPEC, "policy_value", 0)
    states = tuple(f"state.{name}" for name in network.state_fields())
    batch = tensors(batch_of(states))
    batch["parameter_version"] = torch.zeros(STEPS + 1, 2, dtype=torch.int64)  # two trajectories
    objective = ActorCritic(VTraceOptions(epochs=2, minibatches=2))
    objective.seed = 7
    objective.open(network)
    seen = []
    for part in objective.passes(batch):
        network.zero_grad()
        found = objective(part)
        found.total.backward()
        columns = part[INDEX].tolist()
        alone = {
            name: entry[columns] if name.startswith("state.") else entry[:, columns]
            for name, entry in batch.items()
            if name != "parameter_version"
        }
        single = ActorCritic(VTraceOptions())
        single.open(network)
        assert float(single(alone).total.detach()) == pytest.approx(
            float(found.total.detach()), rel=1e-5
        )
        seen.append(columns)
        with torch.no_grad():
            for weight in network.parameters():
                weight -= 0.1 * weight.grad
    assert len(seen) == 4
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(ENVS))
