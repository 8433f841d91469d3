"""What endpoints look like: queues, topic endpoints, and the templates of those that clients create.

Attributes, ranges and defaults are the reference broker's, except where we go further on purpose: a new
endpoint is up in both directions, respects times to live, and tells publishers of every refusal (R114).

Beside its attributes an endpoint has an identity that the node sets: operators see it and cannot change it. Its id and
generation are in every spool key, so that nothing of a deleted endpoint ever shows up in its successor.

    name                  fits
    orders/in             a queue and a topic endpoint
    /orders, a//b         neither: a level is empty
    #DEAD_MSG_QUEUE       the queue that each Message VPN gets; other names that start with # are reserved

    subscription          means
    a/f*                  messages of these topics come in
    !a/fox                these do not, whatever else matches (R122, R126)
    #share/g/a            refused (R23): consumers share a queue by being bound to it
    #P2P/QUE/other        refused: it would copy what is sent to another queue
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors, topic, wire
from cluster.objects.attributes import (
    MAX_TOPIC_BYTES,
    Attributes,
    Count,
    Durability,
    Percent,
    SpoolMegabytes,
    Text,
    about,
    clears,
    own,
    raises,
)

#: The queue to which dead messages go unless an endpoint says otherwise (R202).
DEAD_MESSAGE_QUEUE: Final = "#DEAD_MSG_QUEUE"
#: Who created an endpoint that no client did (R132).
OPERATOR: Final = "operator"
#: Filters of one queue; each change of one sends all of them to the router.
MAX_QUEUE_SUBSCRIPTIONS: Final = 5_000
#: Bytes of the name of a durable endpoint.
MAX_ENDPOINT_NAME_BYTES: Final = 200
#: Bytes of the name of a temporary one: its address is a topic.
MAX_TEMPORARY_NAME_BYTES: Final = MAX_TOPIC_BYTES - len(wire.QUEUE_TOPIC_PREFIX)
#: Begins a filter that keeps messages out.
EXCEPTION_MARK: Final = "!"
_CLIENT_CREATOR: Final = "client:"

_LEVEL: Final = r"[^*?'<>&;/\x00-\x1f\x7f\ud800-\udfff]+"
ENDPOINT_NAME: Final = re.compile(rf"{DEAD_MESSAGE_QUEUE}|(?!#){_LEVEL}(?:/{_LEVEL})*")
ENDPOINT_RULE: Final = "1 to 200 bytes without * ? ' < > & ; and empty levels, and does not start with #"
TEMPLATE_NAME: Final = re.compile(r"[^#?*\x00-\x1f\x7f\ud800-\udfff][^?*\x00-\x1f\x7f\ud800-\udfff]*")
TEMPLATE_RULE: Final = "1 to 255 bytes without ? and *, and does not start with #"

Permission = Literal["no-access", "read-only", "consume", "modify-topic", "delete"]
#: The same level, as operators may write it; it is shown as `no-access`.
NO_ACCESS: Final = "no-access"
NO_ACCESS_SYNONYM: Final = "none"
_DeadMessageQueue = Annotated[str, Meta(max_length=MAX_ENDPOINT_NAME_BYTES)]
_Subscriptions = Annotated[list[str], Meta(max_length=MAX_QUEUE_SUBSCRIPTIONS)]
#: Subscription identifiers of MQTT have 28 bits.
SessionNumber = Annotated[int, Meta(ge=0, lt=1 << 28)]


class _Handling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What endpoints and templates have in common."""

    access_type: Annotated[
        Literal["exclusive", "non-exclusive"],
        about("exclusive: one active flow, the others in standby; non-exclusive: all flows in turn."),
    ] = "exclusive"
    permission: Annotated[
        Permission,
        about(
            "Rights of other usernames: no-access (or none), read-only, consume, modify-topic, delete;"
            " each includes the previous."
        ),
    ] = NO_ACCESS
    max_bind_count: Annotated[int, Meta(ge=0, le=10_000), about("Flows bound at the same time.")] = 1_000
    max_delivered_unacked_per_flow: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        about("Unsettled messages at which delivery to a flow stops.", "maxDeliveredUnackedMsgsPerFlow"),
    ] = 10_000
    max_message_bytes: Annotated[
        int, Meta(ge=0, le=30_000_000), about("Largest message: payload and properties.", "maxMsgSize")
    ] = 10_000_000
    max_spool_usage_mb: Annotated[
        SpoolMegabytes,
        about("Quota; 0 keeps the newest message only (last-value queue).", "maxMsgSpoolUsage"),
    ] = 5_000
    max_redelivery_count: Annotated[
        int, Meta(ge=0, le=255), about("Redeliveries before the message is dead; 0: no limit.")
    ] = 0
    redelivery_enabled: Annotated[bool, about("Whether a message may be delivered more than once.")] = True
    redelivery_delay_enabled: Annotated[
        bool, about("Whether a failed message waits before its redelivery.")
    ] = False
    redelivery_delay_initial_ms: Annotated[
        int,
        Meta(ge=1, le=3_600_000),
        about("Delay of the first redelivery.", "redeliveryDelayInitialInterval"),
    ] = 1_000
    redelivery_delay_max_ms: Annotated[
        int, Meta(ge=1, le=10_800_000), about("Longest delay of a redelivery.", "redeliveryDelayMaxInterval")
    ] = 64_000
    redelivery_delay_multiplier_percent: Annotated[
        int,
        Meta(ge=100, le=500),
        about(
            "Each further delay in percent of the previous one; 200 doubles it.", "redeliveryDelayMultiplier"
        ),
    ] = 200
    max_ttl_s: Annotated[
        Count, about("Longest time that a message stays; 0: no limit. Requires respect_ttl.")
    ] = 0
    respect_ttl: Annotated[
        bool, about("Whether messages expire: by their own time to live and max_ttl_s.", "respectTtlEnabled")
    ] = True
    respect_priority: Annotated[
        bool,
        about("Whether messages with a higher priority are delivered first.", "respectMsgPriorityEnabled"),
    ] = False
    respect_dmq_eligible: Annotated[
        bool,
        about(
            "Whether only dead messages that their publisher marked go to the dead message queue; else all do.",
            "respectDmqEligibleEnabled",
        ),
    ] = False
    dead_message_queue: Annotated[
        _DeadMessageQueue,
        about("Queue for dead messages; if it does not exist, they are deleted.", "deadMsgQueue"),
    ] = DEAD_MESSAGE_QUEUE
    delivery_delay_s: Annotated[Count, about("Delay of the first delivery.")] = 0
    reject_low_priority: Annotated[
        bool,
        about(
            "Whether messages of low priority are refused above reject_low_priority_limit.",
            "rejectLowPriorityMsgEnabled",
        ),
    ] = False
    reject_low_priority_limit: Annotated[
        Count,
        about(
            "Number of messages, of any priority, above which those of low priority are refused.",
            "rejectLowPriorityMsgLimit",
        ),
    ] = 0
    reject_to_sender: Annotated[
        Literal["never", "when-enabled", "always"],
        about(
            "When its publisher gets a nack for a refused message; when-enabled: unless ingress is shut down.",
            "rejectMsgToSenderOnDiscardBehavior",
        ),
    ] = "always"
    durability: Annotated[
        Durability,
        own(
            "relaxed: acknowledge before the message is on disk. Also applies if the Message VPN is relaxed."
        ),
    ] = "synced"
    event_spool_usage_set_percent: Annotated[
        Percent, raises("max_spool_usage_mb", "eventMsgSpoolUsageThreshold.setPercent")
    ] = 25
    event_spool_usage_clear_percent: Annotated[
        Percent, clears("max_spool_usage_mb", "eventMsgSpoolUsageThreshold.clearPercent")
    ] = 18
    event_bind_count_set_percent: Annotated[Percent, raises("max_bind_count")] = 80
    event_bind_count_clear_percent: Annotated[Percent, clears("max_bind_count")] = 60
    event_reject_low_priority_set_percent: Annotated[
        Percent, raises("reject_low_priority_limit", "eventRejectLowPriorityMsgLimitThreshold.setPercent")
    ] = 80
    event_reject_low_priority_clear_percent: Annotated[
        Percent, clears("reject_low_priority_limit", "eventRejectLowPriorityMsgLimitThreshold.clearPercent")
    ] = 60


class _Endpoint(_Handling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What queues and topic endpoints have in common."""

    ingress_enabled: Annotated[bool, about("Whether it takes messages.")] = True
    egress_enabled: Annotated[bool, about("Whether it delivers messages.")] = True
    owner: Annotated[
        Text,
        about(
            "Client username with all rights on it. Operators who name none make it default's,"
            " in its Message VPN, while default needs no password."
        ),
    ] = ""


class Queue(_Endpoint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue: stores messages published to it, or to topics of its subscriptions, for its consumers."""

    subscriptions: Annotated[
        _Subscriptions, about("Filters of messages that it takes; with a leading ! those that it does not.")
    ] = []
    partition_count: Annotated[
        int,
        Meta(ge=0, le=wire.MAX_PARTITIONS),
        about("Partitions by partition key, of a non-exclusive queue; 0: none."),
    ] = 0
    partition_rebalance_delay_s: Annotated[
        Count, about("Time that uneven shares last before partitions move.")
    ] = 5
    partition_rebalance_max_handoff_s: Annotated[
        Count,
        about(
            "Longest time that a moving partition waits for what its consumer works on.",
            "partitionRebalanceMaxHandoffTime",
        ),
    ] = 3
    max_lease_s: Annotated[
        int,
        Meta(ge=1, le=2_592_000),
        own("Longest time that a reader group may keep it leased without using the lease."),
    ] = 3_600
    max_idle_s: Annotated[
        Count, own("Time without a flow after which it is deleted with what it holds; 0: never.")
    ] = 0


class TopicEndpoint(_Endpoint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic endpoint: stores messages of the one topic that its consumer gave at bind."""

    max_bind_count: Annotated[int, Meta(ge=0, le=10_000), about("Flows bound at the same time.")] = 1
    max_spool_usage_mb: Annotated[
        SpoolMegabytes, about("Quota; 0 keeps the newest message only (last-value).")
    ] = 5_000


class Template(_Handling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes for endpoints that clients create.

    A client profile may name one; else the one with the longest `name_filter` that fits counts. One for topic endpoints
    has their `max_bind_count` of 1 unless it names another.
    """

    kind_of_endpoint: Annotated[
        Literal["queue", "topic-endpoint"], own("The kind of endpoint it applies to.")
    ] = "queue"
    name_filter: Annotated[
        Text,
        about(
            "Names it applies to: a name, a/* for one more level, a/> for any; empty: only by client profiles.",
            "queueNameFilter",
        ),
    ] = ""
    durability_override: Annotated[
        Literal["none", "non-durable"],
        about("non-durable: endpoints created with it are temporary, whatever the client asked for."),
    ] = "none"


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an MQTT client subscribes to in its session, in its own words; its queue has the filters of the node."""

    #: Empty if several share the filter that it has.
    client: str
    #: Of its protocol, as it says it in CONNECT.
    version: SessionNumber = 0
    #: MQTT filter -> its filters at the queue, subscription options, subscription identifier or 0.
    filters: Annotated[
        dict[str, tuple[list[str], SessionNumber, SessionNumber]], Meta(max_length=MAX_QUEUE_SUBSCRIPTIONS)
    ] = {}


class _Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node sets and operators see."""

    id: Annotated[int, own("Number that no other endpoint of the node ever had.")] = 0
    generation: Annotated[int, own("Increases when topic or selector change, which deletes its content.")] = 1
    created_by: Annotated[str, own("operator, or client:USERNAME.")] = OPERATOR
    durable: Annotated[bool, own("False for one that ends with its client.")] = True
    client: Annotated[str, own("Client name that a temporary one belongs to.")] = ""
    homes: Annotated[list[int], own("Worker of each partition; the first one without partitions.")] = []
    client_subscriptions: Annotated[
        list[str], own("Filters that clients added; they can remove these only.")
    ] = []


class QueueIdentity(_Identity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of a queue."""

    session: Annotated[
        Session | None,
        own(
            "The MQTT client whose session it keeps, and what that is subscribed to; no client: several share it."
        ),
    ] = None


class TopicEndpointIdentity(_Identity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of a topic endpoint."""

    topic: Annotated[str | None, own("Topic that its consumer gave at bind.")] = None
    selector: Annotated[str | None, own("Selector that its consumer gave at bind.")] = None


def template_defaults(attributes: Attributes) -> Attributes:
    """Give the defaults of a template that follow from what it is for: those of that kind of endpoint."""
    if attributes.get("kind_of_endpoint") != "topic-endpoint":
        return {}
    return {"max_bind_count": TopicEndpoint().max_bind_count}


def creator(username: str) -> str:
    """Give `created_by` of what clients of a username create."""
    return f"{_CLIENT_CREATOR}{username}"


def check_queue_filter(where: str, text: str) -> None:
    """Refuse what is no subscription of a queue.

    Raises:
        InvalidRequestError: it is no filter (40005, 40006).
        ForbiddenError: it is a shared one (40316, R23), or it names a queue (40311).
    """
    pattern = _parsed(where, text.removeprefix(EXCEPTION_MARK))
    if pattern.startswith(wire.QUEUE_TOPIC_PREFIX):
        detail = f"{where}: {text!r} is the address of a queue; copy its messages instead"
        raise errors.error_for(errors.RESERVED_TOPIC, detail)


def check_topic(where: str, text: str) -> None:
    """Refuse what a topic endpoint cannot have for a topic; wildcards are fine.

    Raises:
        InvalidRequestError: it is no filter (40005), or an exception (40028, R123).
        ForbiddenError: it is a shared one (40316), or it names a queue (40311).
    """
    if text.startswith(EXCEPTION_MARK):
        raise errors.error_for(errors.EXCEPTIONS_NOT_SUPPORTED, f"{where}: {text!r}")
    check_queue_filter(where, text)


def check_endpoint(kind: str, attributes: Attributes) -> None:
    """Refuse attributes that do not go together.

    Raises:
        InvalidRequestError: with the two (40015).
    """
    if attributes.get("partition_count") and attributes["access_type"] == "exclusive":
        _refuse(kind, "partition_count needs access_type=non-exclusive: partitions are spread over flows")
    if attributes["reject_low_priority"] and attributes["reject_to_sender"] == "never":
        _refuse(
            kind,
            "reject_low_priority needs reject_to_sender=always or when-enabled: publishers must hear of it",
        )
    if attributes["redelivery_delay_initial_ms"] > attributes["redelivery_delay_max_ms"]:
        _refuse(kind, "redelivery_delay_initial_ms is at most redelivery_delay_max_ms")


def check_name_filter(where: str, text: str) -> None:
    """Refuse what is no name filter of a template: a wildcard is a whole last level, `*` behind a slash.

    Raises:
        InvalidRequestError: it is none (40015).
    """
    head, slash, last = text.rpartition("/")
    name = head if last in ("*", ">") else text
    fits = ENDPOINT_NAME.fullmatch(name) is not None or (not slash and text in ("", ">"))
    if not fits or (last == "*" and not slash):
        detail = f"{where}: {text!r} is no name filter: write a name, NAME/*, NAME/> or >"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def _parsed(where: str, text: str) -> str:
    try:
        parsed = topic.parse_filter(text)
    except errors.AngariumError as error:
        raise errors.error_for(error.code, f"{where}: {error.detail}") from None
    if parsed.share is not None:
        raise errors.error_for(errors.SHARED_ON_ENDPOINT, f"{where}: {text!r}")
    return parsed.pattern


def _refuse(kind: str, why: str) -> None:
    raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{kind}: {why}")
