"""Names, types and choices of what clients say of endpoints, so that type checkers know them.

What each means, its range and its default: docs/attributes.md. The node judges the values; a test compares names and
choices with those of the node.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

#: What a flow consumes.
EndpointKind: TypeAlias = Literal["queue", "topic-endpoint"]
#: Whether a flow accepts messages by itself.
AckPolicy: TypeAlias = Literal["auto", "manual"]
AccessType: TypeAlias = Literal["exclusive", "non-exclusive"]
Permission: TypeAlias = Literal["no-access", "read-only", "consume", "modify-topic", "delete"]
RejectToSender: TypeAlias = Literal["always", "never", "when-enabled"]
Durability: TypeAlias = Literal["synced", "relaxed"]


class EndpointAttributes(TypedDict, total=False):
    """The attributes of a topic endpoint, and of a queue."""

    access_type: AccessType
    permission: Permission
    max_bind_count: int
    max_delivered_unacked_per_flow: int
    max_message_bytes: int
    max_spool_usage_mb: int
    max_redelivery_count: int
    redelivery_enabled: bool
    redelivery_delay_enabled: bool
    redelivery_delay_initial_ms: int
    redelivery_delay_max_ms: int
    redelivery_delay_multiplier_percent: int
    max_ttl_s: int
    respect_ttl: bool
    respect_priority: bool
    respect_dmq_eligible: bool
    dead_message_queue: str
    delivery_delay_s: int
    reject_low_priority: bool
    reject_low_priority_limit: int
    reject_to_sender: RejectToSender
    durability: Durability
    event_spool_usage_set_percent: int
    event_spool_usage_clear_percent: int
    event_bind_count_set_percent: int
    event_bind_count_clear_percent: int
    event_reject_low_priority_set_percent: int
    event_reject_low_priority_clear_percent: int
    ingress_enabled: bool
    egress_enabled: bool
    owner: str


class QueueAttributes(EndpointAttributes, total=False):
    """The attributes of a queue, besides its subscriptions."""

    partition_count: int
    partition_rebalance_delay_s: int
    partition_rebalance_max_handoff_s: int
    max_lease_s: int
    max_idle_s: int
