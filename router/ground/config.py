"""The configuration of the router process: every key once, with its default, its range and a sentence."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from angarium_server.configuration import about, within
from angarium_server.connections.tls import TlsFiles
from angarium_server.tokens.config import TokenIssuer  # noqa: TC001 - msgspec reads the types of RouterRuntime


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the router process; sizes in bytes, times in milliseconds."""

    listen: Annotated[
        list[str],
        about(
            "Addresses for clients: tcp://HOST:PORT (port 0: chosen once and kept), tls://HOST:PORT or ipc://PATH."
        ),
    ] = msgspec.field(default_factory=lambda: ["tcp://127.0.0.1:55555"])
    tls_cert_file: Annotated[
        str, about("Certificate of tls:// addresses, and those up to its authority (PEM).")
    ] = ""
    tls_key_file: Annotated[str, about("Private key of that certificate; empty: it is in the same file.")] = (
        ""
    )
    tls_client_ca_file: Annotated[str, about("Authorities that may sign certificates of clients (PEM).")] = ""
    tls_client_certificates: Annotated[
        Literal["none", "optional", "required"],
        about("Whether clients on tls:// show a certificate: none, optional or required."),
    ] = "none"
    tls_username: Annotated[
        Literal["", "common-name", "dns", "email", "uri"],
        about(
            "What of a client's certificate is its username: common-name, dns, email, uri; empty: nothing."
        ),
    ] = ""
    workers: Annotated[
        int, within(0, 64, "Worker processes; 0: cores less one, 1 to 4. Fixed at the first start.")
    ] = 0
    ingress_rounds: Annotated[int, within(1, 4096, "Batches of one client in flight in the node.")] = 64
    ingress_bytes: Annotated[
        int, within(1024, 1 << 30, "Bytes of one client in flight in the node; one batch may overdraw it.")
    ] = 4 << 20
    worker_window: Annotated[
        int, within(1, 1024, "Batches in flight to one worker; more wait in the router, in turn.")
    ] = 8
    delivery_step_us: Annotated[
        int,
        within(
            1,
            1_000_000,
            "Microseconds, about, that sending on what one client published takes before others have their turn.",
        ),
    ] = 3_000
    max_message_bytes: Annotated[
        int, within(1024, 64 << 20, "Largest message: payload and properties together.")
    ] = 10_000_000
    max_batch_rows: Annotated[int, within(1, 10_000, "Most messages in one batch.")] = 10_000
    max_batch_bytes: Annotated[
        int, within(65_536, 256 << 20, "Largest batch; also the largest frame that the socket accepts.")
    ] = 16 << 20
    max_connections: Annotated[int, within(1, 200_000, "Clients connected to this node.")] = 10_000
    event_connections_set_percent: Annotated[
        int, within(0, 100, "Share of max_connections that raises an event.")
    ] = 80
    event_connections_clear_percent: Annotated[
        int, within(0, 100, "Share of max_connections that ends it.")
    ] = 60
    connects_per_second: Annotated[
        int,
        within(
            0,
            100_000,
            "Connects per second from one address; 0: no limit. Resumed sessions, and this host, are free.",
        ),
    ] = 0
    connect_burst: Annotated[
        int, within(1, 100_000, "Connects from one address at once, where those per second have a limit.")
    ] = 5_000
    control_frames_per_second: Annotated[
        int, within(10, 1_000_000, "Frames per second of one client other than PUBLISH, on average.")
    ] = 10_000
    egress_memory_bytes: Annotated[
        int,
        within(
            1 << 20,
            1 << 40,
            "Bytes queued for all slow consumers; above it the longest queue loses its oldest messages.",
        ),
    ] = 512 << 20
    egress_unread_bytes: Annotated[
        int, within(1 << 16, 1 << 40, "Bytes sent to one client and not confirmed as read; more is queued.")
    ] = 32 << 20
    send_queue_bytes: Annotated[
        int,
        within(
            1 << 20,
            1 << 40,
            "Bytes that may wait for the connection of one client; more end its session (50307).",
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
    keepalive_ms: Annotated[
        int,
        within(
            100,
            3_600_000,
            "Shortest keepalive interval (heartbeat) of a client; three missed ones end the session.",
        ),
    ] = 1000
    resume_ms: Annotated[
        int,
        within(
            0, 3_600_000, "Time after a disconnect in which a client may resume its session with its token."
        ),
    ] = 60_000
    shard_grace_ms: Annotated[
        int,
        within(
            0,
            60_000,
            "Time that direct messages wait for the successor of a dead worker before they are lost.",
        ),
    ] = 250
    eliding_topics_max: Annotated[
        int, within(0, 100_000_000, "Topics tracked for eliding on this node, over all clients.")
    ] = 2_000_000
    fast_path_topics_max: Annotated[
        int,
        within(
            0, 10_000_000, "Topics whose matches the router caches for small batches (fast path); 0: none."
        ),
    ] = 20_000
    fast_path_bytes: Annotated[
        int,
        within(
            1 << 16, 1 << 36, "Bytes of these topics and their sets of matching filters, per Message VPN."
        ),
    ] = 16 << 20
    producer_window_bytes: Annotated[
        int, within(1024, 1 << 30, "Unacknowledged bytes of one producer; one batch may overdraw it.")
    ] = 16 << 20
    promoted_bytes_max: Annotated[
        int,
        within(
            0, 1 << 40, "Bytes of direct messages for queues waiting for one worker's disk; more is dropped."
        ),
    ] = 64 << 20
    link_imports_max: Annotated[
        int, within(1, 100_000_000, "Subscriptions of one neighbour in one Message VPN; more end its link.")
    ] = 1_000_000
    password_checks_max: Annotated[
        int, within(1, 10_000, "Waiting password checks; further logins are refused as too many connects.")
    ] = 200
    password_memory_s: Annotated[
        int,
        within(
            0,
            86_400,
            "Time for which a right password is not hashed again at the next login; 0: always hashed.",
        ),
    ] = 600


class SpoolLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the spool of a node may hold, and when operators are alerted."""

    max_usage_mb: Annotated[
        int, within(0, 6_000_000, "Quota of the node for all guaranteed messages together.")
    ] = 10_000
    max_files: Annotated[
        int, within(1, 1_000_000, "Spool files, each an account of about 8 MB of messages.")
    ] = 50_000
    max_delivered_unacked: Annotated[
        int, within(1, 100_000_000, "Messages delivered to clients and not settled, over all clients.")
    ] = 1_000_000
    event_usage_set_percent: Annotated[int, within(0, 100, "Share of max_usage_mb that raises an event.")] = (
        80
    )
    event_usage_clear_percent: Annotated[int, within(0, 100, "Share of max_usage_mb that ends it.")] = 60
    event_files_set_percent: Annotated[int, within(0, 100, "Share of max_files that raises an event.")] = 80
    event_files_clear_percent: Annotated[int, within(0, 100, "Share of max_files that ends it.")] = 60
    event_delivered_unacked_set_percent: Annotated[
        int, within(0, 100, "Share of max_delivered_unacked that raises an event.")
    ] = 80
    event_delivered_unacked_clear_percent: Annotated[
        int, within(0, 100, "Share of max_delivered_unacked that ends it.")
    ] = 60


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """By what neighbours know a node, and it them."""

    #: Made with the data directory.
    node_id: str = ""
    cluster: str = ""
    #: What every node of the cluster knows; empty: nobody may come from outside.
    secret: str = ""
    #: What the link processes of this node know; another one in every run.
    local_secret: str = ""


class RouterRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor writes for the router beside the configuration itself."""

    node: str
    config: RouterConfig
    workers: int
    token_key_hex: str
    spool: SpoolLimits = SpoolLimits()
    identity: Identity = Identity()
    #: Whose tokens clients may log in with.
    issuers: list[TokenIssuer] = []
    #: Whether a subscription of a queue that starts with `!` is an exception (R125).
    subscription_exceptions: bool = True


def tls_files(config: RouterConfig) -> TlsFiles:
    """Give the files that encrypt `tls://` addresses."""
    return TlsFiles(
        config.tls_cert_file, config.tls_key_file, config.tls_client_ca_file, config.tls_client_certificates
    )
