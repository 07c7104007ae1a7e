# SPDX-License-Identifier: Apache-2.0
"""Steps of nested spaces with masks, as a run that learns reads them from the real client."""

import json
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces
from veldt_client import PolicyClient, described

from veldt.environments.spaces import (
    MOST_NUMBERS,
    external_interface,
    external_spec,
    space_from,
)
from veldt.wire import policy_pb2 as pb
from veldt.wire.external import ExternalFormat, declared_interface
from veldt.wire.protocol import Refused

SPACE = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(5),
        "camera": spaces.Box(0, 255, (6, 5, 3), np.uint8),
        "place": spaces.Tuple([spaces.Discrete(4, start=1), spaces.Box(-1, 1, (2,), np.float64)]),
    }
)
ACTION = spaces.MultiDiscrete([3, 2], start=[5, 0])
INTERFACE = external_interface(SPACE, ACTION)
FORMAT = ExternalFormat(INTERFACE, learns=True)


def client(width: int = 2) -> PolicyClient:
    """One that has been welcomed; no socket is needed to see what it would send."""
    made = PolicyClient("nowhere", width)
    made._welcome = pb.Reply.FromString(FORMAT.welcome()).welcome
    return made


def observations(seed: int, count: int = 2) -> list[dict]:
    SPACE.seed(seed)
    drawn = [SPACE.sample() for _ in range(count)]
    for each in drawn:
        each["action_mask"] = np.array([1, 0, 1, 1, 1], np.int8)
    return drawn


def test_what_the_client_sends_is_what_the_policy_reads():
    seen, last = observations(1), observations(2)
    last[1]["place"][1][:] = np.nan  # of an episode that goes on: nobody reads it
    step = client()._step(seen, [1.5, -2.0], [False, False], [True, False], last, None)
    arrays = FORMAT.read(step, 2, is_first=False)
    assert [arrays["truncated"].tolist(), arrays["first"].tolist()] == [[True, False]] * 2
    assert arrays["reward"].tolist() == [1.5, -2.0]
    assert arrays["action_mask"].tolist() == [[True, False, True, True, True]] * 2
    for row, each in enumerate(seen):
        assert np.array_equal(arrays["observation.camera"][row], each["camera"].transpose(2, 0, 1))
        assert arrays["observation.place.0"][row] == each["place"][0] - 1
        assert np.allclose(arrays["observation.place.1"][row], each["place"][1])
    assert np.allclose(arrays["final_observation.place.1"][0], last[0]["place"][1])
    assert np.isfinite(arrays["final_observation.place.1"]).all()
    spec = external_spec("external:here", INTERFACE, False)
    assert {leaf.name for leaf in spec.observation} <= set(arrays)
    assert spec.action_mask_size == 5


def test_lists_arrays_and_tuples_of_observations_are_the_same_bytes():
    seen = observations(3)
    joined = {
        "action_mask": np.stack([each["action_mask"] for each in seen]),
        "camera": np.stack([each["camera"] for each in seen]).tolist(),
        "place": (
            [int(each["place"][0]) for each in seen],
            np.stack([each["place"][1] for each in seen]),
        ),
    }
    wanted = client()._step(seen, None, None, None, None, None)
    for form in (tuple(seen), joined):
        assert client()._step(form, None, None, None, None, None) == wanted


def test_actions_come_as_the_environment_takes_them():
    reply = pb.Reply.FromString(FORMAT.encode_actions(np.array([[0, 1], [2, 0]])))
    assert np.frombuffer(reply.actions.action, "<i8").tolist() == [5, 1, 7, 0]


def test_values_outside_the_spaces_are_refused():
    seen = observations(1)
    seen[0]["place"] = (9, seen[0]["place"][1])
    step = client()._step(seen, None, None, None, None, None)
    with pytest.raises(Refused, match="outside of the 4 values"):
        FORMAT.read(step, 2, is_first=True)
    step = client()._step(observations(1), None, None, None, None, [[0] * 5, [1] * 5])
    with pytest.raises(Refused, match="allows no action at all"):
        FORMAT.read(step, 2, is_first=True)
    with pytest.raises(ValueError, match="truncated needs final_observation"):
        client()._step(observations(1), None, None, [True, False], None, None)


def test_spaces_travel_as_text():
    hello = pb.Hello(
        protocol=1,
        environments=2,
        observation_space=json.dumps(described(SPACE)),
        action_space=json.dumps(described(ACTION)),
    )
    assert declared_interface(hello) == INTERFACE
    FORMAT.check_spaces(hello)
    for count in (3, MOST_NUMBERS):
        by_hand = {"type": "Discrete", "n": count, "start": 0}
        assert space_from(described(by_hand)) == spaces.Discrete(count)
    for text in ("{", '{"type": "Ball"}', '{"type": "Box", "shape": [-3]}', "[" * 5000):
        hello.action_space = text
        with pytest.raises(Refused, match="are invalid"):
            declared_interface(hello)
    with pytest.raises(Refused, match="takes them from its first client"):
        declared_interface(pb.Hello(protocol=1, environments=1))
    with pytest.raises(Refused, match="this server speaks 1"):
        declared_interface(pb.Hello(protocol=2, environments=1))


def box(shape, dtype="float32"):
    return {"type": "Box", "shape": shape, "dtype": dtype, "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (box([15_000, 15_000], "uint8"), "225,000,000 numbers"),
        ({"type": "Tuple", "spaces": [box([1_000, 1_000])] * 100}, "100,000,000 numbers"),
        ({"type": "Discrete", "n": 10**30, "start": 0}, "numbers"),
        ({"type": "Discrete", "n": 3, "start": 10**30}, "Discrete"),
        ({"type": "Dict"}, "Dict"),
        ({"type": "Dict", "spaces": {}}, "no entries"),
        (box([2], "U100000000"), "U100000000"),
        (box([-3]), "Box"),
        ({**box([2]), "low": [0, 1, 2]}, "Box"),
        ({**box([2]), "low": "nan"}, "Box"),
        ([[[3]]], "describe"),
    ],
)
def test_a_hostile_description_is_refused_before_it_is_built(space, message):
    hello = pb.Hello(protocol=1, environments=1, action_space=json.dumps(described(ACTION)))
    hello.observation_space = json.dumps(space)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=message) as refusal:
            declared_interface(hello)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert refusal.value.reason == "other_spaces"
    assert len(str(refusal.value)) < 400


def test_other_spaces_are_refused_before_they_are_built():
    hello = pb.Hello(protocol=1, environments=1)
    hello.observation_space = json.dumps(box([2_000, 4_000], "float64"))
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=r"'Dict'.* is expected here, yours is .*4000"):
            FORMAT.check_spaces(hello)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
