"""The kinds of sessions, as data: what the router does otherwise for each of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from angarium import wire


class SessionKind(NamedTuple):
    """What the router does otherwise for a kind of sessions: code asks this, and not who it is.

    A kind that is no client carries messages of others with the rights of the node: it has no profile, is in no list
    and no count of clients, and nobody pays for it.
    """

    name: str
    #: Of those that are no clients: the username by which a session says that it is one.
    username: str = ""
    #: Has a client profile and an ACL profile, is listed and counted, and pays for memory and work.
    is_client: bool = True
    #: Stands for another node: what it brings was published there, is for this node alone and goes no further; what it
    #: gets says what is inside.
    is_neighbour: bool = False
    #: Only processes of this node may be it.
    is_of_node: bool = False
    #: Brings what was published elsewhere, by those whose next messages may come with its next session.
    is_relay: bool = False
    #: Added to the mode of a batch of it (`wire.MATCH_...`).
    match_bits: int = 0
    #: Rounds and bytes of it that may be under way; 0: as the configuration says.
    rounds_max: int = 0
    bytes_max: int = 0
    #: Messages and bytes of one of its producers that may be unacknowledged; 0: as the configuration and it say.
    producer_window: int = 0
    producer_bytes: int = 0
    #: What waits for it in each class of service before the oldest is dropped, in work units; 0: as its profile says.
    queue_units: int = 0
    #: Clients are attached to it, and publish and receive direct messages through it; it has no rate of control frames.
    carries_clients: bool = False


CLIENT: Final = SessionKind("client")
#: A bridge of this node, where it publishes what it takes from another one.
BRIDGE: Final = SessionKind(
    "bridge",
    username=wire.BRIDGE_USERNAME,
    is_client=False,
    is_of_node=True,
    is_relay=True,
    match_bits=wire.MATCH_TRAILS,
    rounds_max=32_768,  # bytes are what bounds it, so many lone messages fit on a path of 200 ms too
    bytes_max=wire.LINK_BYTES,
    producer_window=wire.LINK_WINDOW,
    producer_bytes=wire.LINK_WINDOW_BYTES,
    queue_units=32_768,  # 64 MiB
)
#: A gateway, which speaks another protocol with its clients.
GATEWAY: Final = BRIDGE._replace(
    name="gateway",
    username=wire.GATEWAY_USERNAME,
    is_relay=False,
    match_bits=0,
    rounds_max=4_096,  # one holds what many clients said in one turn
    bytes_max=32 << 20,  # it is beside the router, so no path has to be filled
    carries_clients=True,
)
#: The node on the other side of a link; its process is one of this node, or of that one.
LINK: Final = BRIDGE._replace(name="link", username=wire.LINK_USERNAME, is_neighbour=True, is_of_node=False)
#: Username -> kind of those that are no clients.
KINDS: Final = {kind.username: kind for kind in (LINK, BRIDGE, GATEWAY)}
