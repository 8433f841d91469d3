"""The answers of the operations of the admin API: what a client may rely on.

Who answers makes plain maps, for much of it is passed on from other processes as it came; a struct here says which of
their entries have a name and a type that stay. Figures that come beside them are in docs/metrics.md. Tests compare.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Figures by their names; docs/metrics.md says what each means.
Figures = dict[str, Any]


class OfVpn(msgspec.Struct, kw_only=True):
    """Something with a name in a Message VPN."""

    vpn: str
    name: str


class Process(msgspec.Struct, kw_only=True):
    """A process of the node, and what it uses; what is not measured is null."""

    role: str
    index: int
    pid: int | None
    state: str
    restarts: int
    incarnation: int | None = None
    rss_bytes: int | None
    cpu_percent: float | None
    uptime_s: float | None


class Gateway(Process, kw_only=True):
    """A gateway process and what it says of itself."""

    name: str
    listen: list[str]


class Passwordless(msgspec.Struct, kw_only=True):
    """A username under which clients of this host need no password."""

    vpn: str
    username: str


class Status(msgspec.Struct, kw_only=True):
    """The node."""

    node: str
    url: str
    mqtt: list[str]
    management: list[str]
    uptime_s: float
    compiled: bool
    processes: list[Process]
    workers: int
    sessions: int
    subscriptions: int
    rates: Figures
    totals: Figures
    discards: Figures
    spool: Figures
    disk_full: list[str]
    certificates: list[Figures]
    links: list[Figures]
    topology_issues: int
    errors: Figures
    passwordless: list[Passwordless]


class Stats(msgspec.Struct, kw_only=True):
    """The figures of processes; null of one that did not answer."""

    router: Figures | None
    workers: list[Figures | None]
    controller: Figures


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the standby is with one store."""

    store: str
    follows: bool
    caught_up: bool
    lag_groups: int
    bringing_bytes: int
    sent_bytes: int = 0


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a pair, as it sees itself."""

    host: str
    #: `primary` or `standby`; `alone`: the node has one host.
    role: str
    pid: int
    pid_start: int
    since: str
    epoch: int
    primary: str
    #: When the primary began, and why, as a clause; empty: that is not known here.
    begun: str = ""
    why: str = ""
    in_sync: list[str]
    #: Whether it may acknowledge and deliver now.
    acts: bool
    #: Whether an operator had it take over although it might lack what was acknowledged.
    forced: bool = False
    #: Whether it waits for its standby before it acknowledges.
    required: bool
    #: Of a primary: for how long its standby has not followed; 0: it does, or nobody knows.
    silent_s: float = 0.0
    #: The kind of the outside store, and why it did not answer last; empty: it did.
    store: str
    failure: str
    #: Why this host takes nothing over by itself, whatever the outside store says, as a sentence; empty: it does.
    fault: str = ""
    #: Of a standby: why it does not follow a primary that calls it, as an error; empty: it does, or none calls.
    refusal: str = ""
    #: Of a standby: which stores it follows; of a primary: how far the standby is.
    follows: list[str]
    stores: list[StoreStatus]


class Workers(msgspec.Struct, kw_only=True):
    """How many workers are wanted."""

    workers: int


class WorkerLoad(msgspec.Struct, kw_only=True):
    """What a worker has to do, in messages each second, before and after what is planned; 1 KiB counts as one."""

    worker: int
    load: float
    load_after: float


class LaneMove(msgspec.Struct, kw_only=True):
    """A queue, or a partition of one, that goes from one worker to another; what it had when that was planned."""

    kind: str
    vpn: str
    name: str
    partition: int
    source: int
    target: int
    messages: int
    bytes: int
    messages_per_s: float
    bytes_per_s: float
    state: str
    copied_bytes: int
    why: str


class Balance(msgspec.Struct, kw_only=True):
    """What is planned, under way and done."""

    is_moving: bool
    workers: list[WorkerLoad]
    moves: list[LaneMove]


class Check(msgspec.Struct, kw_only=True):
    """Whether a part of the node is as it should be; the text says why not."""

    name: str
    ok: bool
    text: str


class Access(msgspec.Struct, kw_only=True):
    """Whether a username may do something, and every rule that had a say; it may if all are ok."""

    allowed: bool
    checks: list[Check]


class Health(msgspec.Struct, kw_only=True):
    """Whether the node is alive, started and ready."""

    node: str
    live: bool
    started: bool
    ready: bool
    checks: list[Check]
    links: list[Check]


class Event(msgspec.Struct, kw_only=True):
    """Something that happened; what it was about comes beside it."""

    id: int
    time: str
    severity: str
    scope: str
    event: str
    text: str
    vpn: str | None = None
    client: str | None = None


class Followed(msgspec.Struct, kw_only=True):
    """Events behind another one, and the id up to which all were looked at.

    lost is how many up to there are not kept any more; null: what was asked for is the id of no event, and what is
    kept is given from the oldest on.
    """

    events: list[Event]
    upto: int
    lost: int | None


class Deed(msgspec.Struct, kw_only=True):
    """Something that somebody did, wanted to do, or a login: an entry of the audit log."""

    number: int
    time: str
    who: str
    role: str
    door: str
    address: str = ""
    operation: str
    asked: Figures = {}
    outcome: int | str


class Applied(OfVpn, kw_only=True):
    """What was done with an object, or would be; `changes` has what was before and after."""

    action: str
    kind: str
    vpn: str | None  # type: ignore[assignment]  # objects of the node have none
    changes: dict[str, tuple[Any, Any]]


class Purged(msgspec.Struct, kw_only=True):
    """How many messages are deleted."""

    purged: int


class Deleted(msgspec.Struct, kw_only=True):
    """How many messages are deleted."""

    deleted: int


class Released(msgspec.Struct, kw_only=True):
    """The reader groups whose leases are ended, and how many partitions they had."""

    groups: list[str]
    partitions: int


class Jobs(msgspec.Struct, kw_only=True):
    """Jobs that have begun: worker and number of each."""

    jobs: list[tuple[int, int]]


class Progress(msgspec.Struct, kw_only=True):
    """How far jobs are, all of them together."""

    state: Literal["running", "done", "failed"]
    done: int
    total: int
    refused: int
    kept: int
    error: tuple[int, str] | None


class Message(msgspec.Struct, kw_only=True):
    """A message of an endpoint."""

    position: int
    topic: str
    size_bytes: int
    stored_ms: int
    expires_ms: int | None
    priority: int
    redeliveries: int
    state: str
    origin: Any


class WholeMessage(Message, kw_only=True):
    """A message with all that it carries."""

    flags: int
    #: Packed, as they came; what of them has a name, and the application's own as far as JSON can have them.
    properties: Any
    headers: dict[str, str | int]
    user_properties: dict[str, Any]
    payload: bytes


class Messages(msgspec.Struct, kw_only=True):
    """Messages of one partition; `partitions` is 0 if the endpoint has none."""

    messages: list[Message]
    partitions: int


class Client(OfVpn, kw_only=True):
    """A connected client."""

    address: str
    username: str
    profile: str
    sdk: str
    uptime_s: float
    subscriptions: int
    flows: int
    producers: int
    slow: bool
    queued_messages: int
    queued_bytes: int
    memory_bytes: int
    discards: Figures
    counters: Figures


class Subscription(msgspec.Struct, kw_only=True):
    """A subscription of a connected client."""

    client: str
    vpn: str
    filter: str
    share: str | None
    dto_priority: str
    noexport: bool
    origin: str


class WholeClient(Client, kw_only=True):
    """A connected client with its subscriptions."""

    subscription_list: list[Subscription]


class RemoteSubscription(msgspec.Struct, kw_only=True):
    """What a neighbour wants."""

    node: str
    vpn: str
    filter: str


class Flow(msgspec.Struct, kw_only=True):
    """A flow from an endpoint to a client."""

    flow: int
    client: str
    username: str
    vpn: str
    endpoint: str
    kind: str
    browse: bool
    active: bool
    selector: str | None
    group: str | None
    window_messages: int
    sent_messages: int
    sent_bytes: int
    held_messages: int
    settled_messages: int


class Producer(OfVpn, kw_only=True):
    """A producer; of one that is open with its figures."""

    username: str
    id: int
    last_used: str
    open: bool


class Publisher(msgspec.Struct, kw_only=True):
    """Who published messages of an endpoint, and how many of the newest; "" are those who are not connected."""

    client: str
    messages: int


class Stage(msgspec.Struct, kw_only=True):
    """A stage that is not over."""

    vpn: str
    username: str
    id: str
    number: int
    state: str
    sink: str | None
    last_used: str


class Aborted(msgspec.Struct, kw_only=True):
    """How many stages are aborted."""

    aborted: int


class Sink(OfVpn, kw_only=True):
    """A sink and its newest batch."""

    username: str
    batch: int
    last_used: str


class BridgeState(OfVpn, kw_only=True):
    """A bridge: the object, and how it does."""

    enabled: bool
    remote_vpn: str
    addresses: list[str]
    state: str
    error: str


class WebhookState(OfVpn, kw_only=True):
    """A webhook: the object, and how it does."""

    enabled: bool
    queue: str
    url: str
    state: str
    error: str


class LinkState(msgspec.Struct, kw_only=True):
    """A link: the object, and how it does."""

    name: str
    enabled: bool
    addresses: list[str]
    state: str
    error: str
    code: int
    opens: bool
    node_id: str
    encrypted: bool | None
    uptime_s: float | None
    lag_ms: float | None
    progress_percent: int
    channels: list[Figures]


class ClusterNode(msgspec.Struct, kw_only=True):
    """A node of the cluster, as far as this one knows."""

    node: str
    state: str
    node_id: str | None
    release: str | None
    uptime_s: float | None
    heard_s: float | None
    error: str


class ClusterLink(msgspec.Struct, kw_only=True):
    """One end of a link, as the node at that end says."""

    node: str
    neighbour: str
    state: str
    stale: bool
    error: str


class Issue(msgspec.Struct, kw_only=True):
    """Something wrong with the mesh, and what to do."""

    kind: str
    nodes: list[str]
    text: str
    advice: str


class Cluster(msgspec.Struct, kw_only=True):
    """The cluster, seen from this node."""

    cluster: str
    node: str
    nodes: list[ClusterNode]
    links: list[ClusterLink]
    issues: list[Issue]


class JoinToken(msgspec.Struct, kw_only=True):
    """A join token, without what would admit anybody."""

    id: str
    expires_in_s: int
    uses: int
    uses_max: int
    nodes: list[str]


class NewJoinToken(msgspec.Struct, kw_only=True):
    """A join token, once: who has it may join."""

    token: str
    id: str
    addresses: list[str]
    expires_in_s: int
    uses: int


class Spool(msgspec.Struct, kw_only=True):
    """The spool, in sum and by worker."""

    workers: list[Figures]


class Verification(Jobs, kw_only=True):
    """Jobs that read everything, and what is wrong with the config store."""

    faults: list[str]


class Backup(Jobs, kw_only=True):
    """Jobs that copy the spool; `copy` names what is to be fetched, part by part."""

    node: str
    node_id: str
    workers: int
    copy: str | None
    parts: list[str]


class Piece(msgspec.Struct, kw_only=True):
    """A piece of a part of a backup, and the size of the whole part."""

    data: bytes
    size: int


class AsideLane(msgspec.Struct, kw_only=True):
    """A part of what is kept aside."""

    worker: int
    lane_id: int
    partition: int


class Aside(OfVpn, kw_only=True):
    """What the spool has of an endpoint that does not exist."""

    id: int
    kind: str
    lanes: list[AsideLane]
    messages: int
    bytes: int
    oldest_stored_ms: int


class Adopted(OfVpn, kw_only=True):
    """The queue that has the messages now."""

    messages: int


class AsideMessages(msgspec.Struct, kw_only=True):
    """Messages with their bodies, up to a position."""

    rows: list[Any]
    upto: int
    end: Any


class Me(msgspec.Struct, kw_only=True):
    """Who asks; the Message VPN is empty of one of the whole node."""

    name: str
    role: str
    vpn: str


class Found(Me, kw_only=True):
    """The operator who has that certificate or token."""

    enabled: bool
    #: Another number when a Message VPN was deleted: one of the same name is another one.
    vpns: int


class Credentials(Found, kw_only=True):
    """What a login is compared with; the password is a hash."""

    password: str
    #: False: the hash is one that no password fits, and another one each time.
    password_set: bool
