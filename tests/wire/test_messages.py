# SPDX-License-Identifier: Apache-2.0
"""The same bytes mean the same on both ends, and bytes that mean nothing harm nobody."""

from __future__ import annotations

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
from veldt.wire import inference_pb2 as pb
from veldt.wire import policy_pb2
from veldt.wire.protocol import Refused, StreamFormat

ROOT = Path(__file__).resolve().parents[2]
OTHER_END = StreamFormat(Layout(FORMAT.request.fields), Layout(FORMAT.reply.fields))
finite = st.floats(-1e6, 1e6, width=32)
numbers = st.integers(0, 2**63 - 1)
groups = st.integers(0, 2**32 - 1)


@given(numbers, groups, st.lists(finite, min_size=WIDTH, max_size=WIDTH))
def test_rows_and_answers_arrive_as_they_were_sent(sequence, group, rewards):
    buffer = np.zeros(FORMAT.request.nbytes, np.uint8)
    sent = FORMAT.request.views(buffer)
    sent["reward"][:], sent["first"][1] = rewards, True
    message = FORMAT.encode_row(sequence, group, buffer.tobytes())
    *numbered, arrays = OTHER_END.decode_request(message)
    assert numbered == [sequence, group]
    for name, array in sent.items():
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].dtype == array.dtype
    message = FORMAT.encode_answer(sequence, group, answer_bytes(sequence))
    *numbered, arrays = OTHER_END.decode_answer(message)
    assert numbered == [sequence, group]
    assert (arrays["env_action"] == sequence).all()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_or_complete(data):
    message = bytearray(FORMAT.encode_row(7, 0, row_bytes(1.0)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(message) - 1))
        message[place] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    for damaged in (bytes(message), cut, data.draw(st.binary(max_size=512))):
        with suppress(Refused):
            request = FORMAT.decode_request(damaged)
            if not isinstance(request, pb.Open):
                arrays = request[2]
                assert {name: array.shape for name, array in arrays.items()} == {
                    name: field.shape for name, field in FORMAT.request.items()
                }
                assert np.isfinite(arrays["observation"]).all()
        with suppress(Refused):
            FORMAT.decode_answer(damaged)


def refusal_of(message: bytes) -> str:
    with pytest.raises(Refused) as caught:
        FORMAT.decode_request(message)
    return caught.value.reason


def test_each_kind_of_damage_has_its_name():
    assert refusal_of(b"") == "malformed"
    assert refusal_of(FORMAT.encode_row(0, 0, row_bytes()[:-1])) == "malformed"
    assert refusal_of(b"x" * (FORMAT.max_request_bytes + 1)) == "oversized"
    assert refusal_of(FORMAT.encode_row(0, 0, row_bytes(np.nan))) == "not_finite"
    assert refusal_of(FORMAT.encode_row(0, 0, row_bytes(np.inf))) == "not_finite"
    flags = np.frombuffer(bytearray(row_bytes()), np.uint8)
    FORMAT.request.views(flags)["first"].view(np.uint8)[0] = 2
    assert refusal_of(FORMAT.encode_row(0, 0, flags.tobytes())) == "malformed"


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
    assert refusal_of(other.encode_open(0, 0)) == "wrong_format"
    with pytest.raises(Refused, match="wrong_format"):
        FORMAT.check_opened(other.encode_opened())
    FORMAT.check_opened(OTHER_END.encode_opened())


def test_the_largest_honest_message_is_within_the_limit():
    largest = FORMAT.encode_row(2**64 - 1, 2**32 - 1, row_bytes(1.0))
    assert len(largest) <= FORMAT.max_request_bytes
    answer = FORMAT.encode_answer(2**64 - 1, 2**32 - 1, answer_bytes(-1))
    assert len(answer) <= FORMAT.max_reply_bytes


@pytest.mark.parametrize("generated_code", [pb, policy_pb2], ids=lambda module: module.__name__)
def test_the_generated_code_is_that_of_the_schema(generated_code, tmp_path):
    pytest.importorskip("grpc_tools")
    source = generated_code.DESCRIPTOR.name
    root = ROOT / "client" if source.startswith("veldt_client") else ROOT
    schema = root / source
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", str(schema)]
    subprocess.run([*command, f"--descriptor_set_out={tmp_path}/set"], check=True)
    found = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
    generated = descriptor_pb2.FileDescriptorProto()
    generated_code.DESCRIPTOR.CopyToProto(generated)
    for file in (found.file[0], generated):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert found.file[0] == generated
