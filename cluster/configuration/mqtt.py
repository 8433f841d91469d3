"""The section `[mqtt]` of the configuration: where clients of MQTT come in, and what they may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from angarium import errors
from angarium_server.configuration import about, within
from angarium_server.connections.addresses import has_open_port, host_and_port
from cluster import objects
from cluster.configuration.encryption import client_address_faults
from cluster.configuration.listening import double_faults

if TYPE_CHECKING:
    from router.ground.config import RouterConfig

#: Each with the one that is below it.
SCHEMES: Final = {"tcp": "tcp", "tls": "tls", "ws": "tcp", "wss": "tls"}


class MqttSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MQTT: where its clients connect, and what they may cost; sizes in bytes, times in milliseconds."""

    listen: Annotated[
        list[str],
        about(
            "Addresses for clients: tcp://HOST:PORT[/VPN] (port 0: chosen once and kept), tls://, ws:// or wss://; the"
            " certificate is the router's. Empty: none, and no process."
        ),
    ] = []
    processes: Annotated[
        int, within(1, 64, "Gateway processes that share these addresses, and the clients who come.")
    ] = 1
    max_packet_bytes: Annotated[
        int,
        within(
            1024, 64 << 20, "Largest packet that a client may send; never above router.max_message_bytes."
        ),
    ] = 1 << 20
    receive_max: Annotated[
        int,
        within(
            1, 65_535, "Messages with QoS 1 and 2 of a client that may be unacknowledged; 5.0 is told it."
        ),
    ] = 128
    topic_alias_max: Annotated[
        int,
        within(
            0,
            65_535,
            "Topic aliases of a client, which 5.0 is told, and as many of what it is sent; 0: none.",
        ),
    ] = 32
    keepalive_max_s: Annotated[
        int,
        within(
            0,
            65_535,
            "Longest keep alive, which clients of 5.0 with a longer one, or none, are told; 0: any.",
        ),
    ] = 0
    session_expiry_max_s: Annotated[
        int,
        within(
            0,
            0xFFFF_FFFF,
            "Longest time that a session outlives its connection, as those of 3.1.1 do; 0: none does.",
        ),
    ] = 604_800
    egress_memory_bytes: Annotated[
        int,
        within(
            1 << 20,
            1 << 40,
            "Bytes queued for all slow clients of a process; above it the longest queue loses its oldest messages.",
        ),
    ] = 256 << 20
    login_timeout_ms: Annotated[
        int, within(100, 600_000, "Time from connecting to the login; then the connection is closed.")
    ] = 10_000
    pending_connections_max: Annotated[
        int, within(1, 100_000, "Connections that have not logged in; one more closes the oldest.")
    ] = 2_000
    pending_connections_per_address: Annotated[
        int, within(1, 100_000, "The same from one address (IPv6: a /64); one more is closed at once.")
    ] = 500


class MqttAddress(NamedTuple):
    """An address for clients, and what is there."""

    #: As the router has them: tcp:// or tls://.
    url: str
    vpn: str
    is_websocket: bool


def address_of(entry: str) -> MqttAddress:
    """Take an entry of `listen` apart: wss://HOST:PORT/orders is the Message VPN orders, over WebSocket and TLS."""
    scheme, separator, rest = entry.partition("://")
    place, _, vpn = rest.partition("/")
    carried = SCHEMES.get(scheme, scheme)
    return MqttAddress(f"{carried}{separator}{place}", vpn or objects.DEFAULT_NAME, carried != scheme)


def with_port(entry: str, url: str) -> str:
    """Give an entry of `listen` with the port of a URL."""
    scheme, _, rest = entry.partition("://")
    place, slash, vpn = rest.partition("/")
    return f"{scheme}://{place.rpartition(':')[0]}:{url.rpartition(':')[2]}{slash}{vpn}"


def faults_of(section: MqttSection, router: RouterConfig) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    faults = [fault for entry in section.listen for fault in _entry_faults(entry, router)]
    # Both would have it, and who comes would be in the one Message VPN or in the other.
    return faults + double_faults("mqtt", section.listen, lambda entry: address_of(entry).url)


def _entry_faults(entry: str, router: RouterConfig) -> list[str]:
    url, vpn, _ = address_of(entry)
    if entry.partition("://")[0] not in SCHEMES or not (host_and_port(url) or has_open_port(url)):
        return [
            f"mqtt.listen: {entry!r} is no address: write tcp, tls, ws or wss, and ://HOST:PORT or ://HOST:PORT/VPN"
        ]
    try:
        objects.check_name(objects.kind_of("vpn"), vpn)
    except errors.AngariumError as error:
        return [f"mqtt.listen: {entry}: {error.detail}"]
    return client_address_faults("mqtt.listen", "--mqtt", url, router)
