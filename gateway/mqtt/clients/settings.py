"""What a gateway grants its MQTT clients: what is built, and what operators have configured."""

from __future__ import annotations

import msgspec

#: SUBSCRIBEs and UNSUBSCRIBEs of a client that wait for the one before; after that nothing is read of it.
REQUESTS_MAX = 16


class Capabilities(msgspec.Struct, frozen=True):
    """What is built; 5.0 tells its clients."""

    #: The highest QoS of a message that a client publishes.
    qos_max: int = 2
    retain: bool = True
    wills: bool = True
    #: Whether there are subscriptions with QoS 1, and sessions that outlive their connections.
    sessions: bool = True
    shared_subscriptions: bool = True


class Settings(msgspec.Struct, frozen=True):
    """What is configured, for all clients of a process."""

    packet_bytes_max: int = 1 << 20
    #: Messages with QoS 1 and 2 of a client that may be unacknowledged.
    receive_max: int = 128
    topic_alias_max: int = 32
    session_expiry_max_s: int = 604_800
    #: Clients that would be silent for longer are told this; 0: as they like.
    keepalive_max_s: int = 0
    capabilities: Capabilities = Capabilities()
