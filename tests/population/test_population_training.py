# SPDX-License-Identifier: Apache-2.0
"""A population follows orders, discards rows of replaced policies and resumes exactly."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from wiring import FactoryOf, OpenRun, context, counted, live, opened

import veldt
from veldt.checkpoints.store import CheckpointStore
from veldt.errors import ConfigurationError
from veldt.population.controller import Orders, PopulationController, scores_layout
from veldt.population.members import PopulationActor
from veldt.population.rules import PopulationOptions
from veldt.roles.actor import Actor
from veldt.roles.trajectory_sources import NewerRows
from veldt.topology import Topology
from veldt.types import ORDERS, Batch, Parameters

POLICIES = 3
DEFAULTS = (3e-3, 0.01)
OPTIONS = PopulationOptions(POLICIES, pbt_period_env_steps=25, pbt_episodes=2)


class Bench:
    """A controller on live channels, and everybody it talks to."""

    def __init__(self, tmp_path):
        topology = Topology(FactoryOf(dict))
        values = np.tile(DEFAULTS, (POLICIES, 1)).astype(np.float32)
        orders = topology.board(ORDERS, Orders.start(values).to_vector())
        scores = topology.queue("scores", scores_layout(), 4 * POLICIES)
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
            DEFAULTS,
        )
        self.log_path = tmp_path / "population.jsonl"

    def controller(self):
        return opened(self._port(self._role), self.context)

    def tell(self, episodes, env_steps):
        """One message of an actor of each policy; episodes are (policy, generation, return)."""
        for policy, steps in enumerate(env_steps):
            own = [(generation, total) for p, generation, total in episodes if p == policy]
            slot = self.scores.reserve()
            slot["policy"][0], slot["env_steps"][0], slot["count"][0] = policy, steps, len(own)
            slot["generation"][: len(own)] = [generation for generation, _ in own]
            slot["episode_return"][: len(own)] = [total for _, total in own]
            self.scores.commit(slot)

    def orders(self):
        vector = np.empty(Orders.vector_size(POLICIES), np.float32)
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


def test_returns_saved_before_a_replacement_do_not_count_after_it(tmp_path):
    bench = Bench(tmp_path)
    controller = bench.controller()
    bench.tell(ROUND, (120, 120, 120))
    controller.step()
    saved = {name: array.copy() for name, array in controller.state().items()}
    stale = {**saved, "replacements": np.zeros(3, np.int64), "returns.1": np.array([7.0])}
    another = bench.controller()
    another.load_state(stale)
    assert list(another._returns[1]) == []
    assert list(another._returns[0]) == [50.0, 50.0]


def population_run(**options):
    settings = {
        "preset": "control",
        "population_options": {"num_policies": 2, "pbt_learning_rates": (1e-3, 3e-3)},
        "envs_per_actor": 8,
        "trajectory_steps": 8,
        "network_options": {"hidden_sizes": (16,)},
        "optimizer": "adam",
    }
    return OpenRun("sample_factory", **(settings | options))


def order(run, orders, version):
    memory = run.backend._fabric.boards[ORDERS]
    memory.publish(Parameters(orders.to_vector(), version))


def test_a_replaced_learner_continues_from_weights_and_moments_of_its_parent():
    with population_run() as run:
        for _ in range(400):
            run.step()
        child, parent = run.role("learner-0"), run.role("learner-1")
        assert child._version > 3
        assert not np.array_equal(child._snapshot(), parent._snapshot())
        orders = Orders.from_vector(run.backend.parameters(ORDERS).vector, 2)
        orders.replacements[0], orders.parents[0] = 1, 1
        orders.hyperparameters[0] = (6e-3, 0.05)
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
        assert parent.objective.options.entropy_coefficient == pytest.approx(0.01)

        # Whatever was acted before is discarded and counted; what follows is learned from.
        run.step("policy_worker-0")
        lost, updates = run.counter("dropped.replaced_policy"), child._version
        for _ in range(600):
            run.step()
        assert run.counter("dropped.replaced_policy") > lost
        assert child._version > updates
        assert child._newer_rows.first_version == before + 1


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
        again = construct(node, told, partial(run.backend._fabric.open, holder=1)).role
        assert again._generation == 1
        assert again._newer_rows.first_version == run.role("learner-0")._newer_rows.first_version
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
    rows = NewerRows(told, source, first_version=3)
    first = rows.take_batch()
    np.testing.assert_array_equal(first["ignored"][:-1, 0], [True, True, False, False])
    assert counted(told, "dropped.replaced_policy") == 8
    second = rows.take_batch()
    assert second["parameter_version"][0, 0] == 5, "the batch between held nothing of use"
    assert len(released) == 1
    assert counted(told, "dropped.replaced_policy") == 8 + 16
    assert rows.take_batch() is None


def test_returns_count_for_the_generation_that_began_the_episode(monkeypatch):
    """A lost life begins no episode."""
    actor = PopulationActor(None, None, None, member=0, scores=None, generation=None)
    actor._known = SimpleNamespace(generations=np.array([5]))
    actor._begun_in, actor._over = [np.zeros(3, np.int64)], [np.array([True, True, False])]
    environment = SimpleNamespace(first=np.array([True, False, True]))
    group = SimpleNamespace(index=0, environment=environment)
    monkeypatch.setattr(Actor, "_ask", lambda self, group: None)
    actor._ask(group)
    assert actor._begun_in[0].tolist() == [5, 0, 0]
    assert actor._over[0].tolist() == [False, True, False]


def test_returns_and_steps_are_those_of_the_policy_that_played():
    with population_run(num_actors=2) as run:
        controller, actors = run.role("population-0"), [run.role(f"actor-{p}") for p in range(2)]
        totals = np.zeros(2)
        receive = controller._receive

        def adding(batch):
            count = int(batch["count"][0])
            totals[batch["policy"][0]] += batch["episode_return"][:count].sum()
            receive(batch)

        controller._receive = adding
        for _ in range(1000):
            run.step()
        # In CartPole a return is a length: steps without one are those of unfinished episodes.
        for policy, actor in enumerate(actors):
            steps = controller._env_steps[policy] + actor._steps
            finished = totals[policy] + sum(total for _, total in actor._episodes)
            unfinished = sum(group.environment._lengths.sum() for group in actor._groups)
            assert steps - finished == unfinished
        assert (totals > 500).all()


@pytest.mark.parametrize("architecture", ["impala", "sample_factory"])
def test_each_member_is_wired_as_if_it_were_alone(architecture):
    make = {"env": "CartPole-v1", "num_actors": 5, "recurrent": "gru", "preset": "control"}
    with OpenRun(architecture, population_options={"num_policies": 2}, **make) as run:
        topology = run.topology
        for member, actors in enumerate(([0, 2, 4], [1, 3])):
            names = {f"actor-{number}" for number in actors} | {f"learner-{member}"}
            own = [node for node in topology.nodes if node.name in names]
            assert len(own) == len(names)
            for node in own:
                channels = {end.channel.name for _, end in node.ends()}
                wanted = "trajectories-1" if member else "trajectories"
                assert wanted in channels
                assert not {"trajectories", "trajectories-1"} - {wanted} & channels
        weights = [run.backend.parameters(name).vector for name in ("weights", "weights-1")]
        assert not np.array_equal(*weights)


SMALL = {
    "env": "CartPole-v1",
    "preset": "control",
    "backend": "serial",
    "envs_per_actor": 8,
    "population_options": {
        "num_policies": 2,
        "pbt_period_env_steps": 80,
        "pbt_episodes": 10,
        "pbt_gap": 0.02,
    },
    "trajectory_steps": 8,
    "network_options": {"hidden_sizes": (16,)},
    "checkpoint_options": {"env_steps": 1500},
    "evaluation_episodes": 0,
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
        ({"population_options": {"num_policies": 0}}, "num_policies"),
        (
            {"population_options": {"num_policies": 2, "pbt_learning_rates": (1e-3,)}},
            "1 entries for 2 policies",
        ),
        ({"population_options": {"num_policies": 9}}, "9 policies need as many environments"),
        ({"population_options": {"num_policies": 2}, "num_learners": 2}, "both"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        OpenRun("impala", **options)
