"""Who may come and what they may do: Message VPNs, client usernames, their profiles and ACL profiles, and operators.

Each kind is a struct that says, once, every attribute with its type, range, default, a sentence and the name
that the reference broker gives it (docs/attributes.md).
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cluster.objects.attributes import (
    DEFAULT_NAME,
    Count,
    Durability,
    Flows,
    MemoryBytes,
    Percent,
    Producers,
    SpoolMegabytes,
    Text,
    about,
    clears,
    own,
    raises,
)

#: Stands before a colon in HTTP, and in texts.
OPERATOR_NAME: Final = re.compile(r"[^:*?\s\x00-\x1f\x7f\ud800-\udfff]{1,64}")
OPERATOR_RULE: Final = "1 to 64 characters without : * ? and blanks"

#: What an operator may do; each may all that the ones before it may.
Role = Literal["viewer", "operator", "administrator"]
#: Attributes by which an operator is found at a login: no two operators have the same.
LOGIN_NAMES: Final = ("certificate_name", "token_subject")


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator: an account that manages the node, or one Message VPN."""

    enabled: Annotated[bool, own("Whether the operator may do anything, and log in.")] = True
    role: Annotated[
        Role,
        own(
            "viewer sees, operator also works with messages, clients and endpoints, administrator may do everything in "
            "its scope."
        ),
    ] = "viewer"
    vpn: Annotated[Text, own("Message VPN that it is about; empty: the whole node.")] = ""
    password: Annotated[Text, own("Password of logins over HTTP, stored as a hash; empty: none fits.")] = ""
    certificate_name: Annotated[
        Text, own("Common name of the certificate that the operator shows; empty: none.")
    ] = ""
    token_subject: Annotated[
        Text, own("Subject of the tokens (JWT) that the operator shows; empty: none.")
    ] = ""


#: Exceptions in one list; every subscription is judged against all of them.
MAX_EXCEPTIONS: Final = 1_000

_CONNECTIONS_MAX: Final = 200_000
_WORK_UNITS_MAX: Final = 262_144
#: Flows, producers and endpoints that one client has by default, a tenth of those of a Message VPN: no one takes all.
_OF_CLIENT: Final = 1_000
#: Flows and producers of all clients of a username: half, as of connections.
_OF_USERNAME: Final = 5_000

Action = Literal["allow", "disallow"]
_WorkUnits = Annotated[int, Meta(ge=2, le=_WORK_UNITS_MAX)]
_Burst = Annotated[int, Meta(ge=0, le=_WORK_UNITS_MAX)]
_Connections = Annotated[int, Meta(ge=0, le=_CONNECTIONS_MAX)]
_Exceptions = Annotated[list[Text], Meta(max_length=MAX_EXCEPTIONS)]


class Vpn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Message VPN: an isolated set of clients, objects and messages."""

    enabled: Annotated[bool, about("Clients may connect.")] = True
    max_connection_count: Annotated[_Connections, about("Clients connected at the same time.")] = (
        _CONNECTIONS_MAX
    )
    max_subscription_count: Annotated[
        Count, about("Subscriptions of all its connected clients together.")
    ] = 500_000
    max_overlapping_filters: Annotated[
        Count,
        own(
            "Kinds of filters with wildcards of all its connected clients; filters whose wildcards stand in the same "
            "places are of one kind. So many filters at most match one topic."
        ),
    ] = 10_000
    max_overlapping_filters_per_queue: Annotated[
        Count, own("The same of the subscriptions that clients give to one queue.")
    ] = 1_000
    max_matching_work_per_s: Annotated[
        Count,
        own(
            "Work of matching that the messages of all its clients together may cost, in nodes of the tree of filters; "
            "beyond it the clients that cost it are held back. 0: no limit."
        ),
    ] = 2_000_000
    max_memory_bytes: Annotated[
        MemoryBytes,
        own(
            "Memory for subscriptions and flows of its clients, and for its endpoints, in all processes together."
        ),
    ] = 2 << 30
    max_spool_usage_mb: Annotated[
        SpoolMegabytes,
        about(
            "Quota of all its endpoints together; with 0 guaranteed messages are refused.", "maxMsgSpoolUsage"
        ),
    ] = 10_000
    max_retained_mb: Annotated[
        SpoolMegabytes,
        own(
            "Quota of its retained messages, the newest of each topic; part of max_spool_usage_mb. 0: it retains none,"
            " and deletes those that it has."
        ),
    ] = 100
    max_endpoint_count: Annotated[Flows, about("Queues and topic endpoints, temporary ones too.")] = (
        10 * _OF_CLIENT
    )
    max_egress_flow_count: Annotated[
        Flows, about("Flows from its endpoints to clients at the same time.")
    ] = 10 * _OF_CLIENT
    max_ingress_flow_count: Annotated[Producers, about("Producers of its clients at the same time.")] = (
        10 * _OF_CLIENT
    )
    event_spool_usage_set_percent: Annotated[
        Percent, raises("max_spool_usage_mb", "eventMsgSpoolUsageThreshold.setPercent")
    ] = 80
    event_spool_usage_clear_percent: Annotated[
        Percent, clears("max_spool_usage_mb", "eventMsgSpoolUsageThreshold.clearPercent")
    ] = 60
    event_connection_count_set_percent: Annotated[Percent, raises("max_connection_count")] = 80
    event_connection_count_clear_percent: Annotated[Percent, clears("max_connection_count")] = 60
    event_subscription_count_set_percent: Annotated[Percent, raises("max_subscription_count")] = 80
    event_subscription_count_clear_percent: Annotated[Percent, clears("max_subscription_count")] = 60
    event_endpoint_count_set_percent: Annotated[Percent, raises("max_endpoint_count")] = 80
    event_endpoint_count_clear_percent: Annotated[Percent, clears("max_endpoint_count")] = 60
    event_egress_flow_count_set_percent: Annotated[Percent, raises("max_egress_flow_count")] = 80
    event_egress_flow_count_clear_percent: Annotated[Percent, clears("max_egress_flow_count")] = 60
    event_ingress_flow_count_set_percent: Annotated[Percent, raises("max_ingress_flow_count")] = 80
    event_ingress_flow_count_clear_percent: Annotated[Percent, clears("max_ingress_flow_count")] = 60
    durability: Annotated[
        Durability,
        own(
            "relaxed: acknowledge before the message is on disk. Of endpoint and Message VPN the weaker counts."
        ),
    ] = "synced"


class Username(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client username: an account, with its password and profiles."""

    enabled: Annotated[bool, about("Clients may log in under this name.")] = True
    password: Annotated[
        Text,
        about("Stored as a scrypt hash and never shown; an empty one is accepted on loopback and ipc only."),
    ] = ""
    acl_profile: Annotated[Text, about("The ACL profile of its clients.", "aclProfileName")] = DEFAULT_NAME
    client_profile: Annotated[Text, about("The client profile of its clients.", "clientProfileName")] = (
        DEFAULT_NAME
    )
    subscription_manager: Annotated[
        bool, about("Its clients may subscribe for other clients.", "subscriptionManagerEnabled")
    ] = False
    guaranteed_endpoint_permission_override: Annotated[
        bool,
        about(
            "Its clients have an owner's rights on every endpoint.",
            "guaranteedEndpointPermissionOverrideEnabled",
        ),
    ] = False


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client profile: the rights of clients, and their limits on the node's resources."""

    allow_shared_subscriptions: Annotated[
        bool, about("May create and join shared subscriptions.", "allowSharedSubscriptionsEnabled")
    ] = True
    allow_bridge_connections: Annotated[
        bool, about("Bridges of other Message VPNs may take messages.", "allowBridgeConnectionsEnabled")
    ] = False
    eliding: Annotated[
        bool,
        about(
            "A newer message may replace an older one of its topic while the client is slow.",
            "elidingEnabled",
        ),
    ] = False
    eliding_delay_ms: Annotated[
        int,
        Meta(ge=0, le=60_000),
        about("Time between two deliveries of one topic; 0: replace only while congested."),
    ] = 0
    eliding_max_topics: Annotated[
        int, Meta(ge=1, le=32_000), about("Topics tracked for eliding per client.", "elidingMaxTopicCount")
    ] = 256
    max_subscription_count: Annotated[Count, about("Subscriptions of one client.")] = 500_000
    max_overlapping_filters: Annotated[
        Count,
        own(
            "Kinds of filters with wildcards of one client; filters whose wildcards stand in the same places are of "
            "one kind. So many of its filters at most match one topic."
        ),
    ] = 1_000
    max_matching_work_per_s: Annotated[
        Count,
        own(
            "Work of matching that the messages of one client may cost, in nodes of the tree of filters beyond 256 per "
            "topic; beyond it the client is held back. 0: no limit."
        ),
    ] = 500_000
    max_memory_bytes: Annotated[
        MemoryBytes, own("Memory for subscriptions and flows of one client, in all processes together.")
    ] = 512 << 20
    max_memory_bytes_per_client_username: Annotated[
        MemoryBytes, own("The same of one username, with the endpoints that its clients created.")
    ] = 1 << 30
    max_connection_count_per_client_username: Annotated[
        _Connections, about("Clients of one username at the same time.")
    ] = 5_000
    queue_direct_1_max_depth: Annotated[
        _WorkUnits, about("Egress queue of class of service 1, in units of 2048 bytes.")
    ] = 20_000
    queue_direct_1_min_msg_burst: Annotated[
        _Burst, about("Messages that it holds regardless of their size.")
    ] = 4
    queue_direct_2_max_depth: Annotated[
        _WorkUnits, about("Egress queue of class of service 2, in units of 2048 bytes.")
    ] = 20_000
    queue_direct_2_min_msg_burst: Annotated[
        _Burst, about("Messages that it holds regardless of their size.")
    ] = 4
    queue_direct_3_max_depth: Annotated[
        _WorkUnits, about("Egress queue of class of service 3, in units of 2048 bytes.")
    ] = 20_000
    queue_direct_3_min_msg_burst: Annotated[
        _Burst, about("Messages that it holds regardless of their size.")
    ] = 4
    allow_guaranteed_send: Annotated[
        bool, about("May publish guaranteed messages.", "allowGuaranteedMsgSendEnabled")
    ] = True
    allow_guaranteed_receive: Annotated[
        bool, about("May bind to endpoints.", "allowGuaranteedMsgReceiveEnabled")
    ] = True
    allow_endpoint_create: Annotated[
        bool, about("May create and delete endpoints.", "allowGuaranteedEndpointCreateEnabled")
    ] = True
    allow_endpoint_create_durability: Annotated[
        Literal["all", "durable", "non-durable"],
        about("Which endpoints it may create.", "allowGuaranteedEndpointCreateDurability"),
    ] = "all"
    max_egress_flow_count: Annotated[Flows, about("Flows from endpoints to one client at the same time.")] = (
        _OF_CLIENT
    )
    max_ingress_flow_count: Annotated[Producers, about("Producers of one client at the same time.")] = (
        _OF_CLIENT
    )
    max_egress_flow_count_per_client_username: Annotated[
        Flows, own("Flows from endpoints to all clients of one username at the same time.")
    ] = _OF_USERNAME
    max_ingress_flow_count_per_client_username: Annotated[
        Producers, own("Producers of all clients of one username at the same time.")
    ] = _OF_USERNAME
    max_endpoint_count_per_username: Annotated[
        Flows, about("Endpoints that clients of one username created.", "maxEndpointCountPerClientUsername")
    ] = _OF_CLIENT
    queue_template: Annotated[
        Text,
        about(
            "Template of the queues that its clients create; empty: by name_filter of the templates.",
            "apiQueueManagementCopyFromOnCreateTemplateName",
        ),
    ] = ""
    topic_endpoint_template: Annotated[
        Text,
        about(
            "Template of the topic endpoints that its clients create; empty: by name_filter of the templates.",
            "apiTopicEndpointManagementCopyFromOnCreateTemplateName",
        ),
    ] = ""
    reject_no_subscription_match: Annotated[
        bool,
        about(
            "Refuse guaranteed messages that match no subscription; else they are acknowledged as unroutable.",
            "rejectMsgToSenderOnNoSubscriptionMatchEnabled",
        ),
    ] = False


class Acl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ACL profile: four lists, each a default action with exceptions that invert it. A new one denies."""

    client_connect_default: Annotated[
        Action, about("Whether clients may connect.", "clientConnectDefaultAction")
    ] = "disallow"
    client_connect_exceptions: Annotated[_Exceptions, about("Addresses in CIDR form, 10.0.0.0/8.")] = []
    publish_topic_default: Annotated[
        Action, about("Whether clients may publish to a topic.", "publishTopicDefaultAction")
    ] = "disallow"
    publish_topic_exceptions: Annotated[_Exceptions, about("Filters; $client-username is substituted.")] = []
    subscribe_topic_default: Annotated[
        Action, about("Whether clients may subscribe to a filter.", "subscribeTopicDefaultAction")
    ] = "disallow"
    subscribe_topic_exceptions: Annotated[
        _Exceptions, about("Filters; $client-username is substituted.")
    ] = []
    subscribe_share_name_default: Annotated[
        Action, about("Whether clients may use a share name.", "subscribeShareNameDefaultAction")
    ] = "allow"
    subscribe_share_name_exceptions: Annotated[_Exceptions, about("Share names, with wildcards.")] = []
