# SPDX-License-Identifier: Apache-2.0
"""A population: orders are followed, data of a replaced policy is discarded, nothing is lost when
a run is interrupted."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from wiring import FactoryOf, OpenRun, context, counted, live, opened

import veldt
from veldt.checkpoints.store import CheckpointStore
from veldt.environments.infos import read_components
from veldt.errors import ConfigurationError
from veldt.population.actor import Assignment, Casting
from veldt.population.controller import PopulationController
from veldt.population.learner import OwnRows
from veldt.population.options import PopulationOptions
from veldt.population.orders import Orders, scores_layout
from veldt.topology import Topology
from veldt.types import ORDERS, Batch, Parameters

POLICIES = 3
DEFAULTS = (3e-3, 0.01, 1.0)
NAMES = ("learning_rate", "entropy_coefficient", "weight.reward")
OPTIONS = PopulationOptions(
    POLICIES,
    pbt_mutation_rate=1.0,
    pbt_start_env_steps=100,
    pbt_period_env_steps=50,
    pbt_episodes=2,
)


class Bench:
    """A controller on live channels, and everybody it talks to."""

    def __init__(self, tmp_path):
        topology = Topology(FactoryOf(dict))
        values = np.tile(DEFAULTS, (POLICIES, 1)).astype(np.float32)
        orders = topology.board(ORDERS, Orders.start(values).to_vector())
        scores = topology.queue("scores", scores_layout(POLICIES), 4)
        boards = [topology.board(f"g-{p}", np.zeros(1, np.float32)) for p in range(POLICIES)]
        self._port = port = live(topology)
        self.scores, self.orders_seen = port(scores.sink), port(orders.source())
        self.generation = [port(board.sink) for board in boards]
        self.context = context("population-0")
        self.context.run_dir = tmp_path
        self._role = PopulationController(
            scores.source(),
            orders.sink,
            orders.source(),
            [board.source() for board in boards],
            OPTIONS,
            NAMES,
            DEFAULTS,
        )
        self.log_path = tmp_path / "population.jsonl"

    def controller(self):
        return opened(self._port(self._role), self.context)

    def tell(self, episodes, env_steps):
        slot = self.scores.reserve()
        slot["count"][0] = len(episodes)
        for name, column in zip(
            ("policy", "generation", "episode_return"), np.array(episodes).T, strict=True
        ):
            slot[name][: len(episodes)] = column
        slot["env_steps"][:] = env_steps
        self.scores.commit(slot)

    def orders(self):
        vector = np.empty(1 + POLICIES * 5, np.float32)
        self.orders_seen.pull(vector, newer_than=-1)
        return Orders.from_vector(vector, POLICIES)

    def log(self):
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]


ROUND = [(policy, 0, value) for policy, value in enumerate((50.0, 1.0, 30.0)) for _ in range(2)]


def test_the_worst_takes_the_best_ones_place_and_the_log_says_so(tmp_path):
    bench = Bench(tmp_path)
    controller = bench.controller()
    bench.tell(ROUND, (60, 60, 60))
    assert controller.step()
    assert bench.orders().best == 0
    assert bench.orders().replacements.tolist() == [0, 0, 0], "before the warm-up is over"
    bench.tell(ROUND, (60, 60, 60))
    controller.step()
    orders = bench.orders()
    assert orders.replacements.tolist() == [0, 1, 0]
    assert orders.parents[1] == 0
    assert (orders.hyperparameters[1] != orders.hyperparameters[0]).all()
    (entry,) = bench.log()
    assert (entry["policy"], entry["weights_from"], entry["env_steps"]) == (1, 0, 360)
    assert entry["mean_returns"] == [50.0, 1.0, 30.0]
    assert entry["old"]["learning_rate"] == pytest.approx(3e-3)
    assert entry["new"]["learning_rate"] == pytest.approx(orders.hyperparameters[1, 0], rel=1e-5)
    assert "better by 49" in entry["reason"]


def test_nobody_is_judged_while_a_replacement_is_under_way_or_unproven(tmp_path):
    bench = Bench(tmp_path)
    controller = bench.controller()
    bench.tell(ROUND, (120, 120, 120))
    controller.step()
    assert bench.orders().replacements.tolist() == [0, 1, 0]
    old = [(1, 0, 999.0)] * 5  # of episodes that the replaced policy began
    bench.tell([*ROUND, *old], (120, 120, 120))
    controller.step()
    assert len(bench.log()) == 1
    assert counted(bench.context, "dropped.replaced_policy_episodes") == 7
    bench.generation[1].publish(Parameters(np.ones(1, np.float32), 10))
    bench.tell(ROUND, (120, 120, 120))
    controller.step()
    assert len(bench.log()) == 1, "the new policy has finished no episode yet"
    bench.tell([(1, 1, 45.0)] * 2, (0, 0, 0))
    controller.step()
    assert [entry["policy"] for entry in bench.log()] == [1, 1, 2][: len(bench.log())]
    assert len(bench.log()) > 1


def test_a_restarted_controller_goes_on_where_it_was(tmp_path):
    bench = Bench(tmp_path)
    controller = bench.controller()
    bench.tell(ROUND, (120, 120, 120))
    controller.step()
    saved = {name: array.copy() for name, array in controller.state().items()}
    after = bench.controller()
    after.load_state(saved)
    assert after._version == controller._version
    assert after._orders.replacements.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(after._orders.hyperparameters, controller._orders.hyperparameters)
    for name, array in after.state().items():
        np.testing.assert_array_equal(array, saved[name])
    # A window from before a replacement says nothing about the policy after it.
    stale = {**saved, "replacements": np.zeros(3, np.int64), "returns.1": np.array([7.0])}
    another = bench.controller()
    another.load_state(stale)
    assert list(another._returns[1]) == []
    assert list(another._returns[0]) == [50.0, 50.0]


def population_run(**options):
    settings = {
        "preset": "control",
        "num_policies": 2,
        "envs_per_actor": 8,
        "trajectory_steps": 8,
        "pbt_learning_rates": (1e-3, 3e-3),
        "hidden_sizes": (16,),
        "optimizer": "adam",
    }
    return OpenRun("sample_factory", **(settings | options))


def order(run, orders, version):
    memory = run.backend._fabric.boards[ORDERS]
    memory.publish(Parameters(orders.to_vector(), version))


def test_a_replaced_learner_goes_on_from_weights_and_moments_of_its_parent():
    with population_run() as run:
        for _ in range(400):
            run.step()
        child, parent = run.role("learner-0"), run.role("learner-1")
        assert child._version > 3
        assert not np.array_equal(child._snapshot(), parent._snapshot())
        orders = Orders.from_vector(run.backend.parameters(ORDERS).vector, 2)
        orders.replacements[0], orders.parents[0] = 1, 1
        orders.hyperparameters[0] = (6e-3, 0.05, 2.0)
        order(run, orders, 100)
        before = child._version
        assert not child._begin(), "the parent has left nothing yet"
        snapshot = parent._snapshot()
        parent._begin()
        assert child._begin()
        np.testing.assert_array_equal(child._snapshot(), snapshot)
        assert child._version == before + 1
        published = run.backend.parameters("weights")
        assert published.version == child._version
        np.testing.assert_array_equal(published.vector, snapshot[: published.vector.size])
        assert child._learning_rate_scale() == pytest.approx(6e-3 / 3e-3, rel=1e-6)
        assert child.objective.options.entropy_coefficient == pytest.approx(0.05)
        assert child._own_rows.reward_weights.tolist() == [2.0]
        assert parent.objective.options.entropy_coefficient == pytest.approx(0.01)

        # Whatever was acted before is discarded and counted; what follows is learned from.
        run.step("policy_worker-0")
        lost, updates = run.counter("dropped.replaced_policy"), child._version
        for _ in range(600):
            run.step()
        assert run.counter("dropped.replaced_policy") > lost
        assert child._version > updates
        assert child._own_rows.first_version == before + 1


def test_a_restarted_learner_is_not_replaced_twice():
    with population_run() as run:
        for _ in range(100):
            run.step()
        orders = Orders.from_vector(run.backend.parameters(ORDERS).vector, 2)
        orders.replacements[0], orders.parents[0] = 1, 1
        order(run, orders, 100)
        for _ in range(300):
            run.step()
        node = next(node for node in run.topology.nodes if node.name == "learner-0")
        from veldt.backends.base import construct

        version = run.role("learner-0")._version
        told = context("learner-0")
        again = construct(node, told, run.backend._open).role
        assert again._generation == 1
        assert again._own_rows.first_version == run.role("learner-0")._own_rows.first_version
        again._begin()
        assert again._version == version


def test_rows_from_before_a_replacement_are_masked_and_whole_batches_skipped():
    def batch(versions, ignored=False):
        return Batch(
            {
                "parameter_version": np.array(versions, np.int64)[:, None],
                "ignored": np.full((len(versions), 4), ignored),
                "reward": np.ones((len(versions), 4), np.float32),
            }
        )

    waiting = [batch([1, 2, 3, 4, 5]), batch([1, 1, 1, 2, 9]), batch([5, 5, 6, 6, 7])]
    released = []
    source = SimpleNamespace(
        take_batch=lambda: waiting.pop(0) if waiting else None, release=released.append
    )
    told = context()
    rows = OwnRows(told, source, first_version=3)
    rows.reward_weights = np.array([0.5], np.float32)
    first = rows.take_batch()
    np.testing.assert_array_equal(first["ignored"][:-1, 0], [True, True, False, False])
    assert (first["reward"] == 0.5).all()
    assert counted(told, "dropped.replaced_policy") == 8
    second = rows.take_batch()
    assert second["parameter_version"][0, 0] == 5, "the batch between held nothing of use"
    assert len(released) == 1
    assert counted(told, "dropped.replaced_policy") == 8 + 16
    assert rows.take_batch() is None


def test_a_lost_life_does_not_change_the_policy():
    known = SimpleNamespace(generations=np.array([0, 5]))
    casting = Casting(2, scores=None, generations=[])
    assigned = Assignment(casting, np.random.default_rng(0), known, 0, 400)
    everywhere, nowhere = np.ones(400, bool), np.zeros(400, bool)
    assigned.episodes_begin(everywhere)
    before = assigned.policies.copy()
    assert 100 < before.sum() < 300
    np.testing.assert_array_equal(assigned.generations, np.where(before == 1, 5, 0))
    assigned.episodes_end(nowhere)
    assigned.episodes_begin(everywhere)  # a life was lost in each
    np.testing.assert_array_equal(assigned.policies, before)
    over = np.arange(400) < 200
    assigned.episodes_end(over)
    assigned.episodes_begin(nowhere)  # the row that resets still belongs to the policy before
    np.testing.assert_array_equal(assigned.policies, before)
    assigned.episodes_begin(everywhere)
    assert (assigned.policies != before)[:200].any()
    np.testing.assert_array_equal(assigned.policies[200:], before[200:])


def test_returns_and_steps_are_those_of_the_policy_that_played():
    with population_run(num_actors=1) as run:
        controller, actor = run.role("population-0"), run.role("actor-0")
        totals = np.zeros(2)
        receive = controller._receive

        def adding(batch):
            count = int(batch["count"][0])
            np.add.at(totals, batch["policy"][:count], batch["episode_return"][:count])
            receive(batch)

        controller._receive = adding
        for _ in range(1000):
            run.step()
        # In CartPole a return is a length: steps without one are those of unfinished episodes.
        lengths = [group.environment._lengths for group in actor._groups]
        unfinished = np.zeros(2)
        for assigned, length in zip(actor._assignments, lengths, strict=True):
            np.add.at(unfinished, assigned.policies, length)
        steps = controller._env_steps + actor._steps
        for policy, _, value in actor._episodes:
            totals[policy] += value
        np.testing.assert_array_equal(steps - totals, unfinished)
        assert (totals > 500).all()


class TwoParts(gymnasium.Env):
    """Three steps; the parts of the reward are (action, -1)."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 3
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        info = {"reward_components": {"push": float(action), "time": -1.0}}
        return np.zeros(1, np.float32), 10.0, self._left == 0, False, info


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_reward_components_are_read_in_every_mode(mode):
    envs = SyncVectorEnv([TwoParts] * 2, autoreset_mode=mode)
    envs.reset()
    ended, into = np.zeros(2, bool), np.empty((2, 2), np.float32)
    for row in range(6):
        actions = np.array([row % 2, 1])
        _, _, terminated, truncated, info = envs.step(actions)
        ignored = ended if mode == AutoresetMode.NEXT_STEP else np.zeros(2, bool)
        ended = terminated | truncated
        flags = {"terminated": terminated, "truncated": truncated, "ignored": ignored}
        step = SimpleNamespace(**flags, aborted_episodes=0)
        read_components(info, ("time", "push"), step, into)
        wanted = np.stack((np.full(2, -1.0), actions), axis=1) * ~ignored[:, None]
        np.testing.assert_array_equal(into, wanted)


def test_a_component_the_environment_does_not_give_is_named():
    flags = dict.fromkeys(("terminated", "truncated", "ignored"), np.zeros(2, bool))
    step = SimpleNamespace(**flags, aborted_episodes=0)
    info = {"reward_components": {"push": np.ones(2), "_push": np.ones(2, bool)}}
    with pytest.raises(ValueError, match=r"'fuel' \(it has push\)"):
        read_components(info, ("fuel",), step, np.empty((2, 1), np.float32))


@pytest.mark.parametrize("architecture", ["sample_factory", "impala"])
def test_learners_weigh_reward_components(architecture):
    with OpenRun(
        architecture,
        env=TwoParts,
        num_policies=2,
        pbt_reward_components=("push", "time"),
        trajectory_steps=4,
        normalize_returns=False,
    ) as run:
        learner = run.role("learner-1")
        learner._begin()
        learner._own_rows.reward_weights = np.array([2.0, 0.5], np.float32)
        batch = None
        while batch is None:
            run.step(*(name for name in run.nodes if name != "learner-1"))
            batch = learner.source.take_batch()
        used = ~batch["ignored"][:-1]
        wanted = 2.0 * batch["action"][:-1] - 0.5
        np.testing.assert_allclose(batch["reward"][:-1][used], wanted[used])
        assert used.any()


SMALL = {
    "env": "CartPole-v1",
    "preset": "control",
    "backend": "serial",
    "envs_per_actor": 8,
    "num_policies": 2,
    "trajectory_steps": 8,
    "hidden_sizes": (16,),
    "pbt_start_env_steps": 300,
    "pbt_period_env_steps": 200,
    "pbt_episodes": 10,
    "pbt_mutation_rate": 0.5,
    "pbt_relative_gap": 0.02,
    "evaluation_episodes": 0,
    "checkpoint_env_steps": 1500,
    "seed": 5,
}


def boards(run_dir):
    checkpoint = CheckpointStore(run_dir / "checkpoints").newest()
    return checkpoint.load("channels"), checkpoint.load("population-0")


@pytest.mark.parametrize("architecture", ["sample_factory", "impala"])
def test_an_interrupted_population_ends_with_the_same_bits(architecture, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    veldt.train(architecture, run_dir=str(whole), total_env_steps=3000, **SMALL)
    veldt.train(architecture, run_dir=str(halves), total_env_steps=1500, **SMALL)
    first_log = (halves / "population.jsonl").read_text()
    veldt.resume(halves, total_env_steps=3000, quiet=True)
    log = (whole / "population.jsonl").read_text()
    assert log == (halves / "population.jsonl").read_text()
    assert 0 < len(first_log) < len(log), "judgements before and after the interruption"
    assert any(json.loads(line)["replacement"] for line in log.splitlines())
    with pytest.raises(ConfigurationError, match=r"no policy 2; it has 0 to 1"):
        veldt.evaluate(whole, policy=2)
    for one, other in zip(boards(whole), boards(halves), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if name != "telemetry":
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_policies": 0}, "num_policies"),
        ({"num_policies": 2, "pbt_learning_rates": (1e-3,)}, "1 entries for 2 policies"),
        ({"num_policies": 2, "pbt_rule": "best"}, "pbt_rule is unknown"),
        ({"num_policies": 2, "pbt_replace_fraction": 0.9}, "pbt_replace_fraction"),
        ({"num_policies": 2, "pbt_episodes": 0}, "pbt_episodes"),
        ({"num_policies": 2, "pbt_mutation_rate": 1.5}, "pbt_mutation_rate"),
        ({"num_policies": 9}, "9 policies need as many environments"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        OpenRun("sample_factory", **options)


def test_impala_has_several_learners_or_several_policies():
    with pytest.raises(ConfigurationError, match="both"):
        OpenRun("impala", num_policies=2, num_learners=2)
