"""Messages with QoS 1 and 2, both ways, disturbed as a seed says, and what is planted is found.

With QoS 2 each comes once. What has QoS 1 comes at least once, and for the first time in the order in which it was
published; what had its PUBACK is stored, and delivered until the client has said PUBACK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gateway.gathering import Gathering
from gateway.mqtt.sessions import session
from gateway.mqtt.sessions.note import Note, State
from gateway.mqtt.sessions.outgoing import Outgoing
from gateway.mqtt.sessions.received import ExchangeState, Received
from gateway.mqtt.sessions.storing import Own
from gateway.producing import Producing
from tests.share import short, some
from tests.simulation.exactly_once.modelled_node import Disk, Keep, Settle
from tests.simulation.exactly_once.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.mqtt.sessions.note import Keeping

pytestmark = [pytest.mark.requirement("R235"), pytest.mark.requirement("R236"), pytest.mark.slow]

SEEDS_DEFAULT = short(5, long=20)
SEEDS_PER_TEST = short(5, long=10)
#: A fault that is planted shows within so many seeds.
SEEDS_OF_FAULTS = 300


def test_each_message_comes_exactly_once_whatever_dies(first_seed: int) -> None:
    broken = {}
    for number in range(first_seed, first_seed + SEEDS_PER_TEST):
        if found := Scenario(f"exactly-once-{number}").play():
            broken[number] = found
    assert broken == {}


# -- faults that are planted -------------------------------------------------------------------------------------


def publish_before_it_is_noted(patch: pytest.MonkeyPatch) -> None:
    go_on = Received._go_on

    def at_once(received: Received, now: float) -> None:
        go_on(received, now)
        for exchange in received._line:
            if exchange.state is ExchangeState.NUMBERED:
                exchange.state = ExchangeState.NOTED
        received._send()

    patch.setattr(Received, "_go_on", at_once)
    patch.setattr(Received, "_noted", lambda *_: None)


def go_on_at_once(patch: pytest.MonkeyPatch) -> None:
    """What follows a note does not wait for the disk."""
    after: Callable[..., None] = Note.after

    def at_once(note: Note, then: Callable[[float], None], now: float) -> None:
        after(note, lambda _: None, now)
        then(now)

    patch.setattr(Note, "after", at_once)


def complete_before_it_is_noted(patch: pytest.MonkeyPatch) -> None:
    after: Callable[..., None] = Note.after

    def at_once(note: Note, then: Callable[[float], None], now: float) -> None:
        is_release = "release" in then.__qualname__
        after(note, (lambda _: None) if is_release else then, now)
        if is_release:
            then(now)

    patch.setattr(Note, "after", at_once)


def forget_what_was_received(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Received, "load", lambda self, next_sequence, _known, _now: _set_next(self, next_sequence))


def _set_next(received: Received, next_sequence: int) -> float:
    received.next_sequence = next_sequence
    return float("inf")


def forget_what_was_released(patch: pytest.MonkeyPatch) -> None:
    keep_by = Outgoing.keep_by

    def forgetful(self: Outgoing, keeping: Keeping, state: State, *, is_new: bool) -> None:
        forgotten = msgspec.structs.replace(state, released=[])
        keep_by(self, keeping, forgotten, is_new=is_new)

    patch.setattr(Outgoing, "keep_by", forgetful)


def settle_before_it_is_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Note, "deletes", False)


def note_without_deleting(patch: pytest.MonkeyPatch) -> None:
    carry_out = Disk.carry_out

    def halves(self: Disk, order: Any) -> None:
        if isinstance(order, Keep):
            carry_out(self, Keep(order.note, []))
            carry_out(self, Settle(order.done[:-1]))
        else:
            carry_out(self, order)

    patch.setattr(Disk, "carry_out", halves)


def write_no_sequences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        session,
        "State",
        lambda next_sequence, _received, released, *more: State(next_sequence, {}, released, *more),
    )


def forget_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """When the router is replaced and the client stays."""
    away = Own.away

    def forgets(own: Own) -> None:
        own._sent.clear()
        away(own)

    patch.setattr(Own, "away", forgets)


def lose_what_is_under_way_of_all(patch: pytest.MonkeyPatch) -> None:
    """What has QoS 1 and no PUBACK, when the router is replaced."""
    patch.setattr(Gathering, "put_back", lambda *_: None)


def begin_below_what_homes_know(patch: pytest.MonkeyPatch) -> None:
    opened = Producing._opened
    patch.setattr(
        Producing,
        "_opened",
        lambda self, answer: opened(self, msgspec.structs.replace(answer, last_sequence=0)),
    )


def delete_before_puback(patch: pytest.MonkeyPatch) -> None:
    send = Outgoing._send

    def done(outgoing: Outgoing, came: Any, matching: Any) -> list[bytes]:
        packets = send(outgoing, came, matching)
        outgoing._attached.accept(came.window, came.position)
        return packets

    patch.setattr(Outgoing, "_send", done)


def take_what_came_last_first(patch: pytest.MonkeyPatch) -> None:
    go_on = Outgoing.go_on

    def reverse(outgoing: Outgoing, now: float) -> bool:
        outgoing._held.reverse()
        return go_on(outgoing, now)

    patch.setattr(Outgoing, "go_on", reverse)


FAULTS = (
    go_on_at_once,
    publish_before_it_is_noted,
    complete_before_it_is_noted,
    forget_what_was_received,
    forget_what_was_released,
    settle_before_it_is_noted,
    note_without_deleting,
    write_no_sequences,
    forget_what_is_under_way,
    lose_what_is_under_way_of_all,
    begin_below_what_homes_know,
    delete_before_puback,
    take_what_came_last_first,
)


@pytest.mark.parametrize("plant", some(FAULTS, of=3), ids=lambda fault: fault.__name__)
def test_a_fault_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(_is_broken(number) for number in range(SEEDS_OF_FAULTS))


def _is_broken(number: int) -> bool:
    try:
        return bool(Scenario(f"exactly-once-{number}").play())
    except AssertionError:
        return True
