# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from wiring import FactoryOf, context, counted, live, opened

from veldt.networks import FlatParameters
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.ports import Gradient
from veldt.roles.parameter_server import (
    DownpourOptions,
    OutlierFilter,
    OutlierOptions,
    RemoteGradients,
    ServerOptions,
    add_parameter_server,
    shards,
)
from veldt.topology import Topology

ADAGRAD = OptimizerOptions("adagrad", 0.1, optimizer_epsilon=1e-5)
NO_OUTLIERS = {"outlier_deviations": 0.0}


class Network(torch.nn.Module):
    """Ten weights, and three statistics that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("statistics", torch.arange(3.0))


NETWORK = FactoryOf(Network)


class Servers:
    """Shards over live channels, and learners' ends to them."""

    def __init__(self, num_shards: int, optimizer=ADAGRAD, **options: float) -> None:
        topology = Topology(NETWORK)
        self.initial = NETWORK.initial_vector().copy()
        settings = ServerOptions(num_shards=num_shards, **options)
        self._server = add_parameter_server(topology, NETWORK, optimizer, settings, 16)
        nodes = list(topology.nodes)
        self._open = live(topology)
        self.contexts = [context(node.name, node.index) for node in nodes]
        self.roles = [
            opened(self._open(node.role), told)
            for node, told in zip(nodes, self.contexts, strict=True)
        ]

    def learner(self, downpour: DownpourOptions | None = None, **options: float):
        """(gradient sink, flat weights, its context) of one more learner."""
        flat, told = FlatParameters(Network()), context("learner-0")
        outliers = OutlierOptions(**options)
        sink = self._open(
            RemoteGradients(self._server, outliers, downpour=downpour or DownpourOptions())
        )
        sink.open(told, flat)
        return sink, flat, told

    def work(self) -> None:
        while sum(role.step() for role in self.roles):
            pass

    def weights(self) -> np.ndarray:
        joined = np.empty_like(self.initial)
        self._open(self._server).weights().pull(joined, -1)
        return joined

    def counted(self, name: str) -> list[float]:
        return [counted(told, name) for told in self.contexts]


def send(sink, gradient: np.ndarray, loss: float = 1.0, version: int = 0) -> None:
    sink.apply(Gradient(torch.from_numpy(gradient.copy()), version, 1.0, torch.tensor(loss)))


@pytest.mark.parametrize("num_shards", [1, 3, 10])
def test_shards_cover_the_vector_once(num_shards):
    parts = shards(NETWORK, num_shards)
    flat = FlatParameters(Network())
    covered = np.concatenate([np.arange(flat.size)[each.part] for each in parts])
    assert (covered == np.arange(flat.size)).all()
    assert sum(each.num_trained for each in parts) == flat.num_trained == 10
    assert max(each.num_trained for each in parts) - min(e.num_trained for e in parts) <= 1
    assert [each.layout["statistics"].shape[0] for each in parts] == [0] * (num_shards - 1) + [3]
    with pytest.raises(ValueError, match="1 to 10"):
        shards(NETWORK, 11)


@pytest.mark.parametrize(("num_shards", "name"), [(1, "adagrad"), (2, "adam"), (3, "sgd")])
def test_shards_together_are_one_optimizer(num_shards, name):
    options = OptimizerOptions(name, 0.1, optimizer_epsilon=1e-5, max_grad_norm=0.0)
    servers = Servers(num_shards, options, **NO_OUTLIERS)
    sink, _, _ = servers.learner(**NO_OUTLIERS)
    whole = torch.from_numpy(servers.initial[:10].copy())
    optimizer = make_optimizer(options, whole)
    random = np.random.default_rng(0)
    for update in range(5):
        gradient = random.standard_normal(10).astype(np.float32)
        assert sink.begin(update) == update
        send(sink, gradient, version=update)
        servers.work()
        optimizer.step(torch.from_numpy(gradient.copy()))
    np.testing.assert_array_equal(servers.weights()[:10], whole.numpy())
    assert servers.counted("updates")[0] == 5


def test_exactly_the_gradients_above_the_age_bound_are_stale():
    servers = Servers(2, max_gradient_age_updates=4, **NO_OUTLIERS)
    slow = [servers.learner(**NO_OUTLIERS)[0] for _ in range(2)]
    quick, _, _ = servers.learner(**NO_OUTLIERS)
    gradient = np.ones(10, np.float32)
    for sink in slow:
        sink.begin(0)  # pulls version 0 and holds its gradient back
    for update in range(4):
        quick.begin(update)
        send(quick, gradient, version=update)
        servers.work()
    send(slow[0], gradient)  # at the bound
    servers.work()
    assert servers.counted("dropped.stale") == [0, 0]
    before = servers.weights()
    send(slow[1], gradient)
    servers.work()
    assert servers.counted("dropped.stale") == [1, 1]
    np.testing.assert_array_equal(servers.weights(), before)


@pytest.mark.parametrize("guard", ["learner", "server"])
def test_an_unusual_loss_leaves_the_weights_alone(guard):
    alert = {"outlier_deviations": 4.0, "outlier_memory_gradients": 20}
    on_server = alert if guard == "server" else NO_OUTLIERS
    servers = Servers(2, **on_server)
    sink, _, told = servers.learner(**(alert if guard == "learner" else NO_OUTLIERS))
    random = np.random.default_rng(0)
    for update in range(30):
        sink.begin(update)
        send(sink, np.ones(10, np.float32), 1.0 + 0.1 * random.random(), update)
        servers.work()
    before = servers.weights()
    sink.begin(30)
    send(sink, np.ones(10, np.float32), 1e6, 30)
    servers.work()
    np.testing.assert_array_equal(servers.weights(), before)
    dropped = (counted(told, "dropped.outlier"), *servers.counted("dropped.outlier"))
    assert dropped == ((1, 0, 0) if guard == "learner" else (0, 1, 1))
    sink.begin(30)
    send(sink, np.ones(10, np.float32), 1.05, 30)
    servers.work()
    assert (servers.weights()[:10] != before[:10]).all()


def test_the_bound_follows_mean_and_deviation():
    losses = np.random.default_rng(0).standard_normal(50)
    judge = OutlierFilter(OutlierOptions(outlier_deviations=3.0, outlier_memory_gradients=50))
    for loss in losses:
        assert judge.accepts(float(loss))
    sizes = np.abs(losses)
    assert judge.bound == pytest.approx(sizes.mean() + 3 * sizes.std())
    assert not judge.accepts(float("nan"))
    assert not judge.accepts(float("inf"))


def test_a_refused_loss_counts_as_if_it_were_at_the_bound():
    judge = OutlierFilter(OutlierOptions(outlier_deviations=4.0, outlier_memory_gradients=10))
    for number in range(10):
        judge.accepts(1.0 + 0.1 * (number % 2))
    bound, mean = judge.bound, judge.mean
    assert not judge.accepts(1e6)
    assert judge.mean == pytest.approx(mean + (bound - mean) / 10)


def test_a_gradient_that_is_not_finite_goes_nowhere():
    servers = Servers(2, **NO_OUTLIERS)
    sink, _, told = servers.learner(**NO_OUTLIERS)
    sink.begin(0)
    send(sink, np.full(10, np.nan, np.float32))
    servers.work()
    assert counted(told, "dropped.not_finite") == 1
    assert counted(told, "gradients_sent") == 0
    np.testing.assert_array_equal(servers.weights(), servers.initial)


def test_statistics_travel_and_the_newest_counts():
    servers = Servers(2, **NO_OUTLIERS)
    sink, flat, _ = servers.learner(**NO_OUTLIERS)
    other, other_flat, _ = servers.learner(**NO_OUTLIERS)
    sink.begin(0)
    flat.vector[10:] = torch.tensor([7.0, 8.0, 9.0])
    send(sink, np.ones(10, np.float32))
    servers.work()
    other.begin(0)
    assert other_flat.vector[10:].tolist() == [7.0, 8.0, 9.0]


def test_a_learner_waits_while_the_server_is_behind():
    servers = Servers(1, **NO_OUTLIERS)
    sink, _, _ = servers.learner(**NO_OUTLIERS)
    for _ in range(32):
        assert sink.begin(0) == 0
        send(sink, np.ones(10, np.float32))
    assert sink.begin(0) is None
    servers.work()
    assert sink.begin(0) == 32


def test_downpour_pushes_sums_and_fetches_seldom():
    servers = Servers(num_shards=2, optimizer=OptimizerOptions("sgd", 1.0, momentum=0.0))
    often, flat, told = servers.learner(DownpourOptions(3, 2))
    ones = np.ones(flat.num_trained, np.float32)
    versions = []
    for _ in range(6):
        version = often.begin(versions[-1] if versions else 0)
        versions.append(version)
        send(often, ones, version=version)
        servers.work()
    assert counted(told, "gradients_sent") == 3
    assert versions == [0, 0, 0, 1, 1, 1]  # one sum had arrived when the fourth gradient began
    change = servers.weights()[: flat.num_trained] - servers.initial[: flat.num_trained]
    np.testing.assert_allclose(change, -6.0, rtol=1e-5)


def test_what_downpour_has_added_up_is_part_of_the_state():
    servers = Servers(num_shards=1)
    first, flat, _ = servers.learner(DownpourOptions(1, 4))
    first.begin(0)
    send(first, np.ones(flat.num_trained, np.float32))
    second, _, _ = servers.learner(DownpourOptions(1, 4))
    second.load_state(first.state())
    np.testing.assert_array_equal(second.state()["sum"], 1.0)
