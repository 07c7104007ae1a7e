# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from wiring import OpenRun

from veldt.networks import FlatParameters
from veldt.replay.items import Changes

SMALL = {"batch_size": 32, "min_replay_transitions": 128, "trajectory_steps": 4}


def run_with_all_versions(run: OpenRun, rounds: int) -> dict[int, np.ndarray]:
    """Step every node once per round and keep every version of the weights."""
    versions = {0: run.backend.parameters("weights").vector}
    for _ in range(rounds):
        run.step()
        newest = run.backend.parameters("weights")
        versions[newest.version] = newest.vector
    return versions


def recorded_inserts(run: OpenRun) -> list[dict[str, np.ndarray]]:
    """Look over the sampler's shoulder: what each insert brought, read at that moment."""
    role, found = run.role("replay-0"), []
    store, apply = role._store, role._sampler.apply

    def look(changes: Changes, priorities: np.ndarray | None = None) -> None:
        apply(changes, priorities)
        if not changes.inserted.size:
            return
        item = {name: np.copy(array) for name, array in store.sample(changes.inserted).items()}
        rows = store.blocks.versions.reshape(-1)
        following = np.minimum(
            store._next[changes.inserted] // store.blocks.num_envs, len(rows) - 1
        )
        item["next_version"] = rows[following]
        item["priority"] = role._sampler.priorities(changes.inserted)
        found.append(item)

    role._sampler.apply = look
    return found


@pytest.mark.parametrize("algorithm", ["dqn", "dpg"])
def test_first_priorities_are_the_td_errors_of_the_logged_versions(algorithm):
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    options = {"n_step": 3, "refresh_env_steps": 3, **SMALL}
    with OpenRun("apex", env, num_actors=2, env_steps_per_update=8.0, **options) as run:
        inserts = recorded_inserts(run)
        versions = run_with_all_versions(run, 150)
        items = {name: np.concatenate([each[name] for each in inserts]) for name in inserts[0]}
        # A terminated window bootstraps from nothing; which version its successor had is moot.
        items["next_version"] = np.where(
            items["discount"] > 0, items["next_version"], items["parameter_version"]
        )
        network = run.topology.network.make().eval()
        flat = FlatParameters(network)
        expected = np.full(len(items["reward"]), np.nan)
        pairs = np.stack([items["parameter_version"], items["next_version"]], 1)
        assert len(np.unique(pairs[:, 0])) > 5
        assert (pairs[:, 0] != pairs[:, 1]).any(), "windows over a refresh are judged too"
        for now, later in np.unique(pairs, axis=0):
            chosen = (pairs == (now, later)).all(1)
            taken = values(network, flat, versions[now], items, chosen, best=False)
            best = values(network, flat, versions[later], items, chosen, best=True)
            target = items["reward"][chosen] + items["discount"][chosen] * best
            expected[chosen] = np.abs(target - taken)
        np.testing.assert_allclose(
            items["priority"], np.maximum(expected, 1e-6), rtol=1e-3, atol=1e-4
        )


def values(network, flat, vector, items, chosen, best) -> np.ndarray:
    flat.load(vector)
    name = "next_observation" if best else "observation"
    observation = {"observation": torch.from_numpy(items[name][chosen])}
    action = torch.from_numpy(items["action"][chosen])
    with torch.no_grad():
        if hasattr(network, "critic"):
            action = network.actor(observation) if best else action
            return network.critic(observation, action).numpy()
        q = network.step(observation, (), torch.zeros(len(action), dtype=torch.bool))[0].q_values
        return (q.max(1)[0] if best else q.gather(1, action[:, None])[:, 0]).numpy()


@pytest.mark.parametrize("slow", ["actor-0", "learner-0", "nobody"])
def test_the_ratio_of_samples_to_inserts_holds_whoever_is_slow(slow):
    with OpenRun("apex", env_steps_per_update=8.0, **SMALL) as run:
        limiter = run.role("replay-0")._limiter
        assert limiter.samples_per_insert == 4.0
        for turn in range(1000):
            run.step(*(name for name in run.nodes if name != slow or turn % 10 == 0))
            if limiter.num_sampled:
                # Windows at the end of a trajectory wait for the next one: one insert more.
                assert -limiter.error_buffer <= limiter.surplus <= 2 * limiter.error_buffer
        expected = 4.0 * (limiter.num_inserted - limiter.min_size_to_sample)
        assert limiter.num_sampled > 500
        assert limiter.num_sampled == pytest.approx(expected, abs=2 * limiter.error_buffer)
        ratio = run.counter("replay.samples_per_insert")
        assert ratio == pytest.approx(limiter.num_sampled / limiter.num_inserted, rel=0.2)


def test_priorities_flow_back():
    with OpenRun("apex", env_steps_per_update=8.0, **SMALL) as run:
        role = run.role("replay-0")
        updates = []
        update = role._sampler.update

        def look(ids, priorities):
            stale = update(ids, priorities)
            indices, present = role._store.find(ids)
            # Of an item drawn twice the last one counts.
            last = {int(i): float(p) for i, p in zip(indices, priorities[present], strict=True)}
            kept = role._sampler.priorities(np.array(list(last)))
            np.testing.assert_allclose(kept, np.maximum(list(last.values()), 1e-6), rtol=1e-5)
            updates.append(len(ids))
            return stale

        role._sampler.update = look
        for _ in range(200):
            run.step()
        assert sum(updates) >= 0.8 * 32 * run.counter("updates") > 0
        assert run.counter("dropped.late_priorities") == 0


def test_bundles_see_only_their_own_actors_data():
    with OpenRun("gorila", num_actors=3, min_replay_transitions=64, batch_size=16) as run:
        for _ in range(60):
            run.step()
        for bundle in range(3):
            streams = run.role(f"replay-{bundle}")._store.blocks.streams
            assert list(streams) == [bundle]
    with OpenRun("gorila", num_actors=3, replay="global", min_replay_transitions=64) as run:
        for _ in range(60):
            run.step()
        assert sorted(run.role("replay-0")._store.blocks.streams) == [0, 1, 2]
