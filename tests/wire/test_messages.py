# SPDX-License-Identifier: Apache-2.0
"""The same bytes mean the same on both ends, and bytes that mean nothing harm nobody."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import FORMAT, WIDTH, answer_bytes, row_bytes

from veldt.types import Field, Layout
from veldt.wire import policy_pb2
from veldt.wire.protocol import Refused, StreamFormat

ROOT = Path(__file__).resolve().parents[2]
OTHER_END = StreamFormat(Layout(FORMAT.request.fields), Layout(FORMAT.reply.fields))
finite = st.floats(-1e6, 1e6, width=32)
groups = st.integers(0, 2**64 - 1)


@given(groups, st.lists(finite, min_size=WIDTH, max_size=WIDTH))
def test_rows_and_answers_arrive_as_they_were_sent(group, rewards):
    buffer = np.zeros(FORMAT.request.nbytes, np.uint8)
    sent = FORMAT.request.views(buffer)
    sent["reward"][:], sent["first"][1] = rewards, True
    found, arrays = OTHER_END.decode_request(FORMAT.encode_row(group, buffer.tobytes()))
    assert found == group
    for name, array in sent.items():
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].dtype == array.dtype
    found, arrays = OTHER_END.decode_reply(FORMAT.encode_row(group, answer_bytes(7)))
    assert found == group
    assert (arrays["env_action"] == 7).all()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_or_complete(data):
    message = bytearray(FORMAT.encode_row(0, row_bytes(1.0)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(message) - 1))
        message[place] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    for damaged in (bytes(message), cut, data.draw(st.binary(max_size=512))):
        with suppress(Refused):
            _, arrays = FORMAT.decode_request(damaged)
            assert {name: array.shape for name, array in arrays.items()} == {
                name: field.shape for name, field in FORMAT.request.items()
            }
            assert np.isfinite(arrays["observation"]).all()
        with suppress(Refused):
            FORMAT.decode_reply(damaged)


def refusal_of(message: bytes) -> str:
    with pytest.raises(Refused) as caught:
        FORMAT.decode_request(message)
    return caught.value.reason


def test_each_kind_of_damage_has_its_name():
    assert refusal_of(b"") == "malformed"
    assert refusal_of(FORMAT.encode_row(0, row_bytes()[:-1])) == "malformed"
    assert refusal_of(b"x" * (FORMAT.max_request_bytes + 1)) == "malformed"
    assert refusal_of(FORMAT.encode_row(0, row_bytes(np.nan))) == "not_finite"
    assert refusal_of(FORMAT.encode_row(0, row_bytes(np.inf))) == "not_finite"
    flags = np.frombuffer(bytearray(row_bytes()), np.uint8)
    FORMAT.request.views(flags)["first"].view(np.uint8)[0] = 2
    assert refusal_of(FORMAT.encode_row(0, flags.tobytes())) == "malformed"


@pytest.mark.parametrize(
    "changed",
    [
        Layout((("seen", FORMAT.request["observation"]), *FORMAT.request.fields[1:])),
        Layout((("observation", Field((WIDTH, 3), "float64")), *FORMAT.request.fields[1:])),
        Layout((("observation", Field((WIDTH, 4), "float32")), *FORMAT.request.fields[1:])),
        Layout(FORMAT.request.fields[::-1]),
    ],
)
def test_ends_with_other_layouts_notice_at_once(changed):
    other = StreamFormat(changed, FORMAT.reply)
    with pytest.raises(Refused, match="wrong_format"):
        FORMAT.decode_open(other.encode_open(0, 0))
    with pytest.raises(Refused, match="wrong_format"):
        FORMAT.check_digest(other.digest)
    assert FORMAT.decode_open(OTHER_END.encode_open(3, 4)) == (3, 4)


def test_the_generated_code_is_that_of_the_schema(tmp_path):
    pytest.importorskip("grpc_tools")
    root = ROOT / "client"
    schema = root / policy_pb2.DESCRIPTOR.name
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", str(schema)]
    subprocess.run([*command, f"--descriptor_set_out={tmp_path}/set"], check=True)
    found = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
    generated = descriptor_pb2.FileDescriptorProto()
    policy_pb2.DESCRIPTOR.CopyToProto(generated)
    for file in (found.file[0], generated):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert found.file[0] == generated
