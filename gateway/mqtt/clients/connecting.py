"""CONNECT and CONNACK: what a client asks for, what it is granted, and how the node is asked to log it in."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from angarium import wire
from angarium.errors import InvalidRequestError
from angarium.topic import check_topic
from angarium_server.frames import gateways
from gateway.attached import Login
from gateway.mqtt.clients import rules
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import row_of
from gateway.mqtt.topics import mqtt_topic_of, topic_of

if TYPE_CHECKING:
    from angarium_server.connections.tls import Certificate
    from gateway.mqtt.clients.settings import Settings
    from gateway.mqtt.codec.connect import Will
    from gateway.session import AttachedWelcome

#: Who gives no username is this one, as with our own clients.
DEFAULT_USERNAME: Final = "default"
#: Longer ones do not exist.
USERNAME_BYTES_MAX: Final = 189
#: These are of processes of nodes: a client that names one asks to be taken for one.
_PROCESSES: Final = (wire.GATEWAY_USERNAME, wire.LINK_USERNAME, wire.BRIDGE_USERNAME)
_NAMES: Final = {V3: "mqtt 3.1.1", V5: "mqtt 5"}


class Terms(msgspec.Struct, frozen=True):
    """What holds for a connection, from its CONNECT on; clients that agreed on the same share one.

    Attributes:
        version: of the protocol.
        is_named: whether the client gave a client id; else the server is to give it one.
        keep_alive_s: what counts; it is another one than the client asked for if `is_keep_alive_told`.
        session_expiry_s: what the client asked for.
        packet_bytes_max: larger packets it does not take; 0 if it takes all.
        receive_max: messages with QoS 1 and 2 that it takes without having acknowledged them.
        topic_alias_max: topic aliases that it takes.
        wants_reasons: whether it is told more than codes.
        is_clean: whether it wants a new session.
        wants_inbox: whether it is told which topic is for responses to it alone.
        is_bridge: whether it is a bridge of 3.1.1.
    """

    version: int
    is_named: bool
    keep_alive_s: int
    is_keep_alive_told: bool
    session_expiry_s: int
    packet_bytes_max: int
    receive_max: int
    topic_alias_max: int
    wants_reasons: bool
    is_clean: bool
    wants_inbox: bool
    is_bridge: bool = False


#: A session expiry interval that says never (5.0 section 3.1.2.11.2).
EXPIRY_FOR_EVER_S: Final = 0xFFFF_FFFF
#: Terms that are shared with clients that come later.
KNOWN_MAX: Final = 256
_terms: Final = lru_cache(KNOWN_MAX)(Terms)
#: Before a CONNECT.
UNKNOWN: Final = Terms(0, False, 0, False, 0, 0, 0, 0, False, True, False)  # noqa: FBT003 - nothing is known yet


def terms_of(connect: Connect, settings: Settings) -> Terms:
    """Give what holds with a client."""
    given = connect.properties
    keep_alive_s, longest = connect.keep_alive, settings.keepalive_max_s
    # 3.1.1 cannot be told another one.
    is_told = connect.version == V5 and bool(longest) and not 0 < keep_alive_s <= longest
    return _terms(
        version=connect.version,
        is_named=bool(connect.client_id),
        keep_alive_s=longest if is_told else keep_alive_s,
        is_keep_alive_told=is_told,
        session_expiry_s=_session_expiry_s(connect),
        packet_bytes_max=given.maximum_packet_size or 0,
        receive_max=given.receive_maximum or 65_535,
        topic_alias_max=given.topic_alias_maximum or 0,
        wants_reasons=given.request_problem_information != 0,
        is_clean=connect.clean_start,
        wants_inbox=given.request_response_information == 1,
        is_bridge=connect.is_bridge,
    )


def _session_expiry_s(connect: Connect) -> int:
    """Give for how long a client wants its session kept; one of 3.1.1 for ever, or not at all (section 3.1.2.4)."""
    if connect.version == V5:
        return connect.properties.session_expiry_interval or 0
    return 0 if connect.clean_start else EXPIRY_FOR_EVER_S


def login_of(
    connect: Connect,
    settings: Settings,
    address: str,
    certificate: Certificate | None,
    *,
    is_foreign_page: bool = False,
) -> Login:
    """Give how a client logs in at the node.

    Raises:
        PacketError: it asks for what there is not, or its username or password are none.
    """
    version = connect.version
    if connect.properties.authentication_method is not None:
        raise PacketError(rules.METHOD, connect.properties.authentication_method, version)
    will = None if connect.will is None else _will_of(connect, connect.will, settings)
    username = connect.username or DEFAULT_USERNAME  # libraries send an empty one for none
    if username in _PROCESSES or len(username.encode()) > USERNAME_BYTES_MAX:
        raise PacketError(rules.USERNAME, repr(username), version)
    return Login(
        username=username,
        password=_password_of(connect),
        client_name=connect.client_id,
        address=address,
        certificate=certificate,
        sdk=_NAMES[version],
        will=will,
        is_clean=connect.clean_start,
        is_foreign_page=is_foreign_page,
    )


def _will_of(connect: Connect, will: Will, settings: Settings) -> gateways.Will:
    """Give the will of a client as the node takes it; whether its client may publish it is judged when it does."""
    _check_will(will, settings, connect.version)
    topic = topic_of(will.topic)
    try:
        check_topic(topic)
    except InvalidRequestError as error:
        raise PacketError(rules.WILL_TOPIC, error.describe(), connect.version) from None
    message = Publish(will.topic, will.payload, will.qos, retain=will.retain, properties=will.properties)
    flags, meta, properties = row_of(message, connect.client_id)
    kept_s = min(_session_expiry_s(connect), settings.session_expiry_max_s)
    delay_s = min(will.properties.will_delay_interval or 0, kept_s)
    return gateways.Will(topic, flags, meta, properties, will.payload, delay_s)


def _check_will(will: Will, settings: Settings, version: int) -> None:
    capabilities = settings.capabilities
    if will.qos > capabilities.qos_max and version == V5:
        raise PacketError(rules.WILL_QOS, f"{will.qos}", version)
    if will.retain and not capabilities.retain and version == V5:
        raise PacketError(rules.WILL_RETAIN, "one", version)
    if not capabilities.wills:
        raise PacketError(rules.NO_WILL, "one", version)


def _password_of(connect: Connect) -> str | None:
    if connect.password is None:
        return None
    try:
        return connect.password.decode()
    except UnicodeDecodeError:
        raise PacketError(rules.PASSWORD, "other bytes", connect.version) from None


def acceptance(
    terms: Terms, settings: Settings, welcome: AttachedWelcome, expiry_s: int, *, is_present: bool
) -> ConnAck:
    """Give the CONNACK of a client that is logged in; its session lasts so long, and it was there before or not."""
    granted = _granted(terms, settings, welcome, expiry_s) if terms.version == V5 else NONE
    return ConnAck(session_present=is_present, properties=granted)


def _granted(terms: Terms, settings: Settings, welcome: AttachedWelcome, expiry_s: int) -> Properties:
    """Say what 5.0 is told; a property is left out where the client would assume the same without it."""
    can = settings.capabilities
    return Properties(
        session_expiry_interval=expiry_s if expiry_s != terms.session_expiry_s else None,
        receive_maximum=settings.receive_max,
        maximum_qos=can.qos_max if can.qos_max < 2 else None,
        retain_available=None if can.retain else 0,
        maximum_packet_size=min(settings.packet_bytes_max, welcome.max_message_bytes),
        assigned_client_identifier=None if terms.is_named else welcome.client_name,
        topic_alias_maximum=settings.topic_alias_max or None,
        shared_subscription_available=None if can.shared_subscriptions and welcome.rights.may_share else 0,
        server_keep_alive=terms.keep_alive_s if terms.is_keep_alive_told else None,
        response_information=mqtt_topic_of(welcome.inbox) if terms.wants_inbox else None,
    )
