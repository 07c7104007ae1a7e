# SPDX-License-Identifier: Apache-2.0
"""Questions about rows and their answers, where memory is shared; and what becomes of them when one
who asks or one who answers dies."""

import pytest
import requesting_roles as roles
from driving import advance_until, bare_topology, counter, strike

from veldt.backends.base import Backend
from veldt.topology import Topology

backends_with_shared_memory = pytest.mark.parametrize("name", ["serial", "process"])

ASKERS, JUDGE = (0, 1), 4


def askers_and_answerers(limit: int = 1 << 40, mute: bool = False) -> Topology:
    """Two who ask; in one process, two who answer and one who takes what comes of it."""
    topology = bare_topology()
    queue = topology.queue("slots", roles.row_layout(), num_slots=5)
    requests = topology.ask_about("requests", queue, num_clients=2)
    for index in range(2):
        topology.add("asker", roles.Asker(queue.sink, requests.client(index), limit))
    home = [topology.add("answerer", roles.Answerer(requests.server, mute)) for _ in range(2)]
    home.append(topology.add("judge", roles.Judge(queue.source())))
    topology.colocate(*home, threads=True)
    return topology


def total(backend: Backend, nodes: tuple[int, ...], name: str) -> float:
    return sum(counter(backend, node, name) for node in nodes)


@backends_with_shared_memory
def test_every_question_is_answered_once_in_the_row_it_is_about(name, make_backend):
    backend = make_backend(name, askers_and_answerers(limit=25))
    backend.start()
    advance_until(backend, lambda: counter(backend, JUDGE, "received") == 50, "all slots")
    questions = 50 * roles.ROWS
    advance_until(backend, lambda: total(backend, ASKERS, "answered") == questions, "counters")
    advance_until(backend, lambda: total(backend, (2, 3), "answers") == questions, "counters")
    if name != "serial":
        # One who waits sleeps; looking for answers in a loop would take thousands of steps.
        assert total(backend, ASKERS, "idle_steps") < 10 * questions


def test_one_who_asks_may_die_with_a_question_open(make_backend):
    """Its successor asks anew; the answer to the dead one is taken for no other."""
    backend = make_backend("process", askers_and_answerers())
    backend.start()
    for incarnation in range(3):
        advance_until(
            backend,
            lambda expected=incarnation: (
                counter(backend, JUDGE, "newest_incarnation") == expected
                and all(counter(backend, asker, "answered") > 0 for asker in ASKERS)
                and counter(backend, 0, "incarnation") == expected
            ),
            f"slots of incarnation {incarnation}",
        )
        strike(backend, 0)
        last = incarnation + 1
    advance_until(backend, lambda: counter(backend, JUDGE, "newest_incarnation") == last, "more")
    assert backend.restarts == last


def test_questions_that_a_dead_one_had_taken_are_asked_again(make_backend):
    """Both questions are with it when it dies, and none waits any more."""
    backend = make_backend("process", askers_and_answerers(mute=True))
    backend.start()
    advance_until(backend, lambda: total(backend, (2, 3), "swallowed") == 2, "both questions")
    strike(backend, 2)
    advance_until(
        backend,
        lambda: all(counter(backend, asker, "answered") > 20 for asker in ASKERS),
        "answers of the successor",
    )
    assert backend.restarts == 1
