"""Our error codes as MQTT says them: a reason code each, and what stands for it in a packet that does not have that.

3.1.1 has five return codes for a CONNECT, one for a subscription, and none else.
"""

from __future__ import annotations

from typing import Final

from angarium import errors
from gateway.mqtt.codec.errors import RETURN_CODES, ReasonCode
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender, reasons_of

_R = ReasonCode

#: What an MQTT client may meet. Anything else is between other parts of a node, and a matter of this server.
_CODES: Final = {
    _R.NO_MATCHING_SUBSCRIBERS: (errors.NO_SUBSCRIPTION_MATCH,),
    _R.NO_SUBSCRIPTION_EXISTED: (errors.SUBSCRIPTION_NOT_FOUND,),
    _R.CLIENT_IDENTIFIER_NOT_VALID: (errors.INVALID_CLIENT_NAME, errors.CLIENT_NAME_IN_USE),
    _R.BAD_USER_NAME_OR_PASSWORD: (errors.UNAUTHORIZED, errors.CERTIFICATE_USERNAME),
    _R.NOT_AUTHORIZED: (
        errors.TOKEN_EXPIRED,
        errors.CLIENT_CONNECT_DENIED,
        errors.PUBLISH_DENIED,
        errors.SUBSCRIBE_DENIED,
        errors.SHARE_NAME_DENIED,
        errors.VPN_NOT_ALLOWED,
        errors.OTHER_VPN,
        errors.CROSS_ORIGIN,
        errors.USERNAME_SHUTDOWN,
        errors.RESERVED_TOPIC,
        errors.GUARANTEED_SEND_DENIED,
        errors.GUARANTEED_RECEIVE_DENIED,
        errors.ENDPOINT_CREATE_DENIED,
        errors.PERMISSION_DENIED,
    ),
    _R.SERVER_UNAVAILABLE: (
        errors.VPN_UNAVAILABLE,
        errors.NODE_UNREACHABLE,
        errors.SESSION_UNKNOWN,
        errors.NOT_CONNECTED,
        errors.CONNECT_FAILED,
    ),
    _R.SERVER_BUSY: (
        errors.TIMEOUT,
        errors.SHARD_UNAVAILABLE,
        errors.HOME_NOT_READY,
        errors.CONTROLLER_UNAVAILABLE,
        errors.LOW_PRIORITY_CONGESTION,
    ),
    _R.SERVER_SHUTTING_DOWN: (errors.SHUTTING_DOWN,),
    _R.KEEP_ALIVE_TIMEOUT: (errors.KEEPALIVE_TIMEOUT,),
    _R.SESSION_TAKEN_OVER: (errors.TAKEN_OVER,),
    _R.TOPIC_FILTER_INVALID: (
        errors.INVALID_FILTER,
        errors.INVALID_SHARE_NAME,
        errors.EXCEPTIONS_NOT_SUPPORTED,
    ),
    _R.TOPIC_NAME_INVALID: (errors.INVALID_TOPIC, errors.UNKNOWN_ENDPOINT),
    _R.RECEIVE_MAXIMUM_EXCEEDED: (errors.PRODUCER_WINDOW_EXCEEDED,),
    _R.PACKET_TOO_LARGE: (errors.MESSAGE_TOO_LARGE,),
    _R.MESSAGE_RATE_TOO_HIGH: (errors.CONTROL_RATE_EXCEEDED, errors.MATCHING_WORK_EXCEEDED),
    _R.QUOTA_EXCEEDED: (
        errors.MAX_SUBSCRIPTIONS_EXCEEDED,
        errors.OVERLAPPING_FILTERS,
        errors.TOO_MANY_CLIENTS,
        errors.TOO_MANY_CONNECTIONS,
        errors.EGRESS_BLOCKED,
        errors.SPOOL_OVER_QUOTA,
        errors.SPOOL_FILES_EXCEEDED,
        errors.TOO_MANY_ENDPOINTS,
        errors.TOO_MANY_FLOWS,
        errors.MEMORY_EXCEEDED,
        errors.DISK_FULL,
    ),
    _R.ADMINISTRATIVE_ACTION: (errors.DISCONNECTED_BY_OPERATOR,),
    _R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: (errors.SHARED_SUBSCRIPTION_DENIED,),
    _R.CONNECTION_RATE_EXCEEDED: (errors.CONNECT_RATE_EXCEEDED,),
}
_REASONS: Final = {code: reason for reason, codes in _CODES.items() for code in codes}

#: What comes nearest, where a packet does not have a reason.
_NEXT: Final = {
    _R.BAD_USER_NAME_OR_PASSWORD: _R.NOT_AUTHORIZED,
    _R.SERVER_UNAVAILABLE: _R.SERVER_BUSY,
    _R.SERVER_SHUTTING_DOWN: _R.SERVER_UNAVAILABLE,
    _R.SESSION_TAKEN_OVER: _R.CLIENT_IDENTIFIER_NOT_VALID,
    _R.TOPIC_FILTER_INVALID: _R.TOPIC_NAME_INVALID,
    _R.TOPIC_NAME_INVALID: _R.TOPIC_FILTER_INVALID,
    _R.RECEIVE_MAXIMUM_EXCEEDED: _R.QUOTA_EXCEEDED,
    _R.PACKET_TOO_LARGE: _R.QUOTA_EXCEEDED,
    _R.MESSAGE_RATE_TOO_HIGH: _R.QUOTA_EXCEEDED,
    _R.CONNECTION_RATE_EXCEEDED: _R.QUOTA_EXCEEDED,
    _R.QUOTA_EXCEEDED: _R.SERVER_UNAVAILABLE,
    _R.ADMINISTRATIVE_ACTION: _R.NOT_AUTHORIZED,
    _R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: _R.NOT_AUTHORIZED,
}
#: Where nothing comes near.
_LAST: Final = (_R.IMPLEMENTATION_SPECIFIC_ERROR, _R.UNSPECIFIED_ERROR)


def reason_of(code: int) -> ReasonCode:
    """Give the reason that an error code of ours is, in whatever packet."""
    return _REASONS.get(code, _R.IMPLEMENTATION_SPECIFIC_ERROR)


def fitting(reason: ReasonCode, kind: PacketType, version: int = V5) -> ReasonCode:
    """Give a reason, or what comes nearest to it, that a server may say in such a packet.

    Where there is none, as in most packets of 3.1.1, it is an unspecified error.
    """
    has = _has(kind, version)
    tried: dict[ReasonCode | None, None] = {}
    one: ReasonCode | None = reason
    while one and one not in tried:
        tried[one] = None
        one = _NEXT.get(one)
    return next((one for one in (*tried, *_LAST) if one in has), _R.UNSPECIFIED_ERROR)


def _has(kind: PacketType, version: int) -> frozenset[int]:
    if version == V3 and kind is PacketType.CONNACK:
        return frozenset(RETURN_CODES)
    return reasons_of(kind, version, Sender.SERVER)
