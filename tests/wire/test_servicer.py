# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is, who has been replaced, and what is refused, without any transport."""

import pytest
from streams import FORMAT, answer_bytes, row_bytes

from veldt.wire.protocol import Refused, StreamServicer, StreamSession


@pytest.fixture
def servicer() -> StreamServicer:
    return StreamServicer(FORMAT, num_clients=2, groups_per_client=2)


def opened(
    servicer: StreamServicer, actor: int = 0, incarnation: int = 0
) -> tuple[StreamSession, list[bytes]]:
    replies: list[bytes] = []
    session = servicer.connect(replies.append)
    session.receive(FORMAT.encode_open(actor, incarnation))
    assert replies.pop() == FORMAT.digest
    return session, replies


def refused(session: StreamSession, message: bytes) -> str:
    with pytest.raises(Refused) as caught:
        session.receive(message)
    return caught.value.reason


def test_rows_come_out_in_order_and_answers_go_where_they_belong(servicer):
    first, first_replies = opened(servicer, 0)
    second, second_replies = opened(servicer, 1)
    first.receive(FORMAT.encode_row(0, row_bytes(1.0)))
    second.receive(FORMAT.encode_row(1, row_bytes(2.0)))
    rows = [servicer.take(), servicer.take()]
    assert servicer.take() is None
    assert [(row.client, row.group) for row in rows] == [(0, 0), (1, 1)]
    rows[1].answer(answer_bytes(5))
    assert not first_replies
    group, arrays = FORMAT.decode_reply(second_replies[0])
    assert (group, arrays["env_action"][0]) == (1, 5)


def test_a_stream_begins_with_open_and_is_opened_once(servicer):
    session = servicer.connect(lambda _: None)
    assert refused(session, FORMAT.encode_row(0, row_bytes())) == "malformed"
    session, _ = opened(servicer)
    assert refused(session, FORMAT.encode_open(0, 0)) == "malformed"
    session = servicer.connect(lambda _: None)
    assert refused(session, FORMAT.encode_open(2, 0)) == "malformed"  # there are actors 0 and 1


def test_a_flood_is_refused_after_one_row_per_group(servicer):
    session, _ = opened(servicer)
    session.receive(FORMAT.encode_row(0, row_bytes()))
    session.receive(FORMAT.encode_row(1, row_bytes()))
    assert refused(session, FORMAT.encode_row(0, row_bytes())) == "out_of_turn"
    assert refused(session, FORMAT.encode_row(7, row_bytes())) == "out_of_turn"
    assert servicer.take() is not None
    assert servicer.take() is not None
    assert servicer.take() is None


def test_a_restarted_actor_replaces_its_old_self(servicer):
    old, _ = opened(servicer, incarnation=0)
    old.receive(FORMAT.encode_row(0, row_bytes(1.0)))
    new, _ = opened(servicer, incarnation=1)
    new.receive(FORMAT.encode_row(0, row_bytes(2.0)))
    request = servicer.take()
    assert request.arrays["observation"][0, 0] == 2.0  # what the old stream had asked is gone
    assert request.incarnation == 1
    assert request.connection > 1
    assert servicer.take() is None
    assert refused(old, FORMAT.encode_row(1, row_bytes())) == "superseded"
    late = servicer.connect(lambda _: None)
    assert refused(late, FORMAT.encode_open(0, 0)) == "old_incarnation"
