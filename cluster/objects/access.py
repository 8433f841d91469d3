"""Who may come and what they may do: Message VPNs, client usernames, client profiles and ACL profiles.

Each kind is a struct that says, once, every attribute with its type, range, default, a sentence and the name
that the reference broker gives it (facts sections 4, 6, 7 and 8).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cluster.objects.attributes import (
    DEFAULT_NAME,
    Count,
    Durability,
    Flows,
    Percent,
    Producers,
    SpoolMegabytes,
    Text,
    about,
)

#: Exceptions in one list; every subscription is judged against all of them.
MAX_EXCEPTIONS: Final = 1_000

_CONNECTIONS_MAX: Final = 200_000
_WORK_UNITS_MAX: Final = 262_144

Action = Literal["allow", "disallow"]
_WorkUnits = Annotated[int, Meta(ge=2, le=_WORK_UNITS_MAX)]
_Burst = Annotated[int, Meta(ge=0, le=_WORK_UNITS_MAX)]
_Connections = Annotated[int, Meta(ge=0, le=_CONNECTIONS_MAX)]
_Exceptions = Annotated[list[Text], Meta(max_length=MAX_EXCEPTIONS)]


class Vpn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Message VPN: clients see messages and objects of their own one only."""

    enabled: Annotated[bool, about("Clients may connect.", "enabled")] = True
    max_connection_count: Annotated[
        _Connections, about("Clients connected at the same time.", "maxConnectionCount")
    ] = _CONNECTIONS_MAX
    max_subscription_count: Annotated[
        Count,
        about("Subscriptions of all its connected clients together.", "maxSubscriptionCount"),
    ] = 500_000
    max_spool_usage_mb: Annotated[
        SpoolMegabytes,
        about(
            "Quota of all its endpoints together; 0 leaves no room for guaranteed messages.",
            "maxMsgSpoolUsage",
        ),
    ] = 10_000
    max_endpoint_count: Annotated[
        Flows, about("Queues and topic endpoints, temporary ones too.", "maxEndpointCount")
    ] = 1_000
    max_egress_flow_count: Annotated[
        Flows, about("Flows from its endpoints to clients at the same time.", "maxEgressFlowCount")
    ] = 1_000
    max_ingress_flow_count: Annotated[
        Producers, about("Producers of its clients at the same time.", "maxIngressFlowCount")
    ] = 1_000
    event_spool_usage_set_percent: Annotated[
        Percent,
        about("Share of max_spool_usage_mb that raises an event.", "eventMsgSpoolUsageThreshold.setPercent"),
    ] = 80
    event_spool_usage_clear_percent: Annotated[
        Percent,
        about("Share of max_spool_usage_mb that ends it.", "eventMsgSpoolUsageThreshold.clearPercent"),
    ] = 60
    event_connection_count_set_percent: Annotated[
        Percent,
        about(
            "Share of max_connection_count that raises an event.", "eventConnectionCountThreshold.setPercent"
        ),
    ] = 80
    event_connection_count_clear_percent: Annotated[
        Percent,
        about("Share of max_connection_count that ends it.", "eventConnectionCountThreshold.clearPercent"),
    ] = 60
    event_subscription_count_set_percent: Annotated[
        Percent,
        about(
            "Share of max_subscription_count that raises an event.",
            "eventSubscriptionCountThreshold.setPercent",
        ),
    ] = 80
    event_subscription_count_clear_percent: Annotated[
        Percent,
        about(
            "Share of max_subscription_count that ends it.", "eventSubscriptionCountThreshold.clearPercent"
        ),
    ] = 60
    event_endpoint_count_set_percent: Annotated[
        Percent,
        about("Share of max_endpoint_count that raises an event.", "eventEndpointCountThreshold.setPercent"),
    ] = 80
    event_endpoint_count_clear_percent: Annotated[
        Percent,
        about("Share of max_endpoint_count that ends it.", "eventEndpointCountThreshold.clearPercent"),
    ] = 60
    event_egress_flow_count_set_percent: Annotated[
        Percent,
        about(
            "Share of max_egress_flow_count that raises an event.", "eventEgressFlowCountThreshold.setPercent"
        ),
    ] = 80
    event_egress_flow_count_clear_percent: Annotated[
        Percent,
        about("Share of max_egress_flow_count that ends it.", "eventEgressFlowCountThreshold.clearPercent"),
    ] = 60
    event_ingress_flow_count_set_percent: Annotated[
        Percent,
        about(
            "Share of max_ingress_flow_count that raises an event.",
            "eventIngressFlowCountThreshold.setPercent",
        ),
    ] = 80
    event_ingress_flow_count_clear_percent: Annotated[
        Percent,
        about("Share of max_ingress_flow_count that ends it.", "eventIngressFlowCountThreshold.clearPercent"),
    ] = 60
    durability: Annotated[
        Durability,
        about("relaxed: acknowledged before it is on disk. Of endpoint and Message VPN the weaker counts."),
    ] = "synced"


class Username(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client username: who may log in, and with which profiles."""

    enabled: Annotated[bool, about("Clients may log in under this name.", "enabled")] = True
    password: Annotated[
        Text,
        about(
            "Kept as a scrypt hash and never shown; empty is accepted on loopback and ipc only.", "password"
        ),
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
    """A client profile: what a client may do and how much of the node it may take."""

    allow_shared_subscriptions: Annotated[
        bool,
        about("May create and join shared subscriptions.", "allowSharedSubscriptionsEnabled"),
    ] = True
    allow_bridge_connections: Annotated[
        bool,
        about("Bridges of other Message VPNs may take messages with it.", "allowBridgeConnectionsEnabled"),
    ] = False
    eliding: Annotated[
        bool,
        about("Newer messages may replace older ones of their topic while it is slow.", "elidingEnabled"),
    ] = False
    eliding_delay_ms: Annotated[
        int,
        Meta(ge=0, le=60_000),
        about("Between two deliveries of one topic; 0 replaces only while congested.", "elidingDelay"),
    ] = 0
    eliding_max_topics: Annotated[
        int,
        Meta(ge=1, le=32_000),
        about("Topics tracked for eliding per client.", "elidingMaxTopicCount"),
    ] = 256
    max_subscription_count: Annotated[
        Count, about("Subscriptions of one client.", "maxSubscriptionCount")
    ] = 500_000
    max_connection_count_per_client_username: Annotated[
        _Connections,
        about("Clients of one username at the same time.", "maxConnectionCountPerClientUsername"),
    ] = _CONNECTIONS_MAX
    queue_direct_1_max_depth: Annotated[
        _WorkUnits,
        about("Egress queue of class of service 1, in units of 2048 bytes.", "queueDirect1MaxDepth"),
    ] = 20_000
    queue_direct_1_min_msg_burst: Annotated[
        _Burst, about("Messages it holds whatever their size.", "queueDirect1MinMsgBurst")
    ] = 4
    queue_direct_2_max_depth: Annotated[
        _WorkUnits,
        about("Egress queue of class of service 2, in units of 2048 bytes.", "queueDirect2MaxDepth"),
    ] = 20_000
    queue_direct_2_min_msg_burst: Annotated[
        _Burst, about("Messages it holds whatever their size.", "queueDirect2MinMsgBurst")
    ] = 4
    queue_direct_3_max_depth: Annotated[
        _WorkUnits,
        about("Egress queue of class of service 3, in units of 2048 bytes.", "queueDirect3MaxDepth"),
    ] = 20_000
    queue_direct_3_min_msg_burst: Annotated[
        _Burst, about("Messages it holds whatever their size.", "queueDirect3MinMsgBurst")
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
    max_egress_flow_count: Annotated[
        Flows, about("Flows from endpoints to one client at the same time.", "maxEgressFlowCount")
    ] = 1_000
    max_ingress_flow_count: Annotated[
        Producers, about("Producers of one client at the same time.", "maxIngressFlowCount")
    ] = 1_000
    max_endpoint_count_per_username: Annotated[
        Flows,
        about("Endpoints that clients of one username created.", "maxEndpointCountPerClientUsername"),
    ] = 1_000
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
            "Refuse guaranteed messages that nobody subscribed to; else they are acknowledged and dropped.",
            "rejectMsgToSenderOnNoSubscriptionMatchEnabled",
        ),
    ] = False


class Acl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ACL profile: four lists, each a default action and exceptions that invert it. A new one denies."""

    client_connect_default: Annotated[
        Action, about("Whether clients may connect.", "clientConnectDefaultAction")
    ] = "disallow"
    client_connect_exceptions: Annotated[
        _Exceptions, about("Addresses in CIDR form, 10.0.0.0/8.", "clientConnectExceptions")
    ] = msgspec.field(default_factory=list)
    publish_topic_default: Annotated[
        Action, about("Whether clients may publish to a topic.", "publishTopicDefaultAction")
    ] = "disallow"
    publish_topic_exceptions: Annotated[
        _Exceptions,
        about("Topics, with wildcards and $client-username if need be.", "publishTopicExceptions"),
    ] = msgspec.field(default_factory=list)
    subscribe_topic_default: Annotated[
        Action, about("Whether clients may subscribe to a filter.", "subscribeTopicDefaultAction")
    ] = "disallow"
    subscribe_topic_exceptions: Annotated[
        _Exceptions,
        about("Topics, with wildcards and $client-username if need be.", "subscribeTopicExceptions"),
    ] = msgspec.field(default_factory=list)
    subscribe_share_name_default: Annotated[
        Action, about("Whether clients may use a share name.", "subscribeShareNameDefaultAction")
    ] = "allow"
    subscribe_share_name_exceptions: Annotated[
        _Exceptions, about("Share names, with wildcards.", "subscribeShareNameExceptions")
    ] = msgspec.field(default_factory=list)
