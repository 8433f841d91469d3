"""The carriers of a process: which of them stay."""

from __future__ import annotations

from angarium import errors, wire
from gateway.carrier import BACKOFF_MAX_S, IDLE_S
from tests.unit.gateway.played_router import Gateway


def play_tenant(gateway: Gateway, vpn: str) -> None:
    """A client publishes in a Message VPN, which is deleted."""
    client, _ = gateway.attach("c", vpn)
    gateway.turn()
    line = gateway.line
    line.says([wire.WELCOME, wire.pack(gateway._welcome)], gateway.now)
    gateway.turn()
    attached = wire.pack(gateway.attached_welcome(client.number))
    line.says([wire.ATTACHED, client.number.to_bytes(8, "big"), wire.WELCOME, attached], gateway.now)
    client.publish("t", 0, None, None, b"x")
    gateway.turn()
    line.says([wire.CLOSED, wire.pack((errors.VPN_UNAVAILABLE, ""))], gateway.now)
    gateway.turn()


def test_message_vpns_that_were_deleted_leave_nothing_behind_but_what_was_counted() -> None:
    """Each stayed, and was looked at in every turn: a thousand of them took milliseconds."""
    gateway = Gateway()
    for number in range(20):
        play_tenant(gateway, f"tenant-{number}")
        gateway.now += IDLE_S + BACKOFF_MAX_S
        gateway.turn()
    assert gateway.carriers.describe() == []
    counts = gateway.carriers.counts("lost")
    assert (counts["messages_in"], counts["lost"]) == (20, 20)


def test_a_message_vpn_that_was_away_for_a_moment_keeps_its_carrier() -> None:
    gateway = Gateway()
    play_tenant(gateway, "tenant")
    gateway.now += IDLE_S / 2
    gateway.turn()
    assert [row["vpn"] for row in gateway.carriers.describe()] == ["tenant"]
