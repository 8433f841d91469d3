"""Random packets for the tests of the codec: any that the specification allows, by version and by who sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import ConnAck, Connect, Will
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq, PingResp
from gateway.mqtt.codec.kinds import V3, V5, PacketType, Sender
from gateway.mqtt.codec.properties import NONE, TABLE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe

if TYPE_CHECKING:
    from gateway.mqtt.codec.packets import Packet

P = PacketType
#: Letters of one to four bytes, and the two that a sloppy reader drops or takes for something else.
LETTERS = st.sampled_from("ab/ \u00e9\u20ac\U0001f40e\ufeff\u007f*>$")
texts = st.text(LETTERS, max_size=12)
names = st.text(LETTERS, min_size=1, max_size=12).filter(lambda text: not text.startswith("$share/"))
levels = st.one_of(st.just("+"), st.text("abc$ \u20ac", max_size=4))
plain_filters = st.builds(
    lambda parts, end: "/".join([*parts, *end]),
    st.lists(levels, min_size=1, max_size=5),
    st.sampled_from([[], ["#"]]),
).filter(lambda text: bool(text) and text.partition("/")[0] != "$share")
shared_filters = st.builds(
    lambda name, rest: f"$share/{name}/{rest}", st.text("ab1", min_size=1, max_size=3), plain_filters
)
binaries = st.binary(max_size=20)
identifiers = st.integers(1, 0xFFFF)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
qos = st.integers(0, 2)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "payload_format_indicator": st.integers(0, 1),
    "message_expiry_interval": st.integers(0, 0xFFFFFFFF),
    "content_type": texts,
    "response_topic": names,
    "correlation_data": binaries,
    "session_expiry_interval": st.integers(0, 0xFFFFFFFF),
    "assigned_client_identifier": texts,
    "server_keep_alive": st.integers(0, 0xFFFF),
    "authentication_method": texts,
    "authentication_data": binaries,
    "request_problem_information": st.integers(0, 1),
    "will_delay_interval": st.integers(0, 0xFFFFFFFF),
    "request_response_information": st.integers(0, 1),
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": identifiers,
    "topic_alias_maximum": st.integers(0, 0xFFFF),
    "topic_alias": identifiers,
    "maximum_qos": st.integers(0, 1),
    "retain_available": st.integers(0, 1),
    "user_properties": pairs,
    "maximum_packet_size": st.integers(1, 0xFFFFFFFF),
    "wildcard_subscription_available": st.integers(0, 1),
    "subscription_identifier_available": st.integers(0, 1),
    "shared_subscription_available": st.integers(0, 1),
}
numbers = st.one_of(st.integers(1, 200), st.integers(1, 268_435_455))


def properties(place: PacketType, version: int, sender: Sender) -> st.SearchStrategy[Properties]:
    """Give properties that a packet may have: none at all as often as some."""
    if version == V3:
        return st.just(NONE)
    values = {row.name: VALUES[row.name] for row in TABLE if place in row.places and row.name in VALUES}
    if place is P.SUBSCRIBE:
        values["subscription_identifiers"] = st.tuples(numbers)
    elif place is P.PUBLISH and sender is Sender.SERVER:
        values["subscription_identifiers"] = st.lists(numbers, max_size=3).map(tuple)
    elif place is P.DISCONNECT and sender is Sender.SERVER:
        del values["session_expiry_interval"]
    some = st.fixed_dictionaries({}, optional=values).map(lambda given: _made(place, given))
    return some if place is P.AUTH else st.just(NONE) | some


def _made(place: PacketType, given: dict[str, Any]) -> Properties:
    """Make properties of values, with the method that authentication data, and every AUTH, come with."""
    if "authentication_data" in given or place is P.AUTH:
        given = {"authentication_method": "SCRAM-SHA-1", **given}
    return Properties(**given)


def wills(version: int) -> st.SearchStrategy[Will]:
    given = properties(P.WILL, version, Sender.CLIENT)
    return st.builds(Will, names, binaries, qos, st.booleans(), given)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | texts)
    may_have_password = version == V5 or username is not None
    clean_start = draw(st.booleans())
    needs_name = version == V3 and not clean_start
    return Connect(
        version=version,
        client_id=draw(names if needs_name else texts),
        clean_start=clean_start,
        keep_alive=draw(st.integers(0, 0xFFFF)),
        will=draw(st.none() | wills(version)),
        username=username,
        password=draw(st.none() | binaries) if may_have_password else None,
        properties=draw(properties(P.CONNECT, version, Sender.CLIENT)),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    code = draw(st.sampled_from([0, 0x80, 0x84, 0x87, 0x9F] if version == V5 else [0, 1, 5]))
    given = draw(properties(P.CONNACK, version, Sender.SERVER))
    return ConnAck(code, not code and draw(st.booleans()), given)


@st.composite
def publishes(draw: st.DrawFn, version: int, sender: Sender) -> Publish:
    given = draw(properties(P.PUBLISH, version, sender))
    level = draw(qos)
    return Publish(
        topic=draw(st.just("") | names) if given.topic_alias else draw(names),
        payload=draw(st.binary(max_size=300)),
        qos=level,
        packet_id=draw(identifiers) if level else 0,
        dup=bool(level) and draw(st.booleans()),
        retain=draw(st.booleans()),
        properties=given,
    )


@st.composite
def acknowledgements(draw: st.DrawFn, version: int, sender: Sender) -> Packet:
    kind: Any = draw(st.sampled_from([PubAck, PubRec, PubRel, PubComp]))
    received = kind in (PubAck, PubRec)
    codes = [0] if version == V3 else [0, 0x10, 0x87, 0x99] if received else [0, 0x92]
    packet: Packet = kind(
        draw(identifiers), draw(st.sampled_from(codes)), draw(properties(kind.kind, version, sender))
    )
    return packet


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    is_shared = draw(st.booleans())
    text = draw(shared_filters if is_shared else plain_filters)
    if version == V3:
        return Subscription(text, draw(qos))
    return Subscription(
        text,
        draw(qos),
        no_local=not is_shared and draw(st.booleans()),
        retain_as_published=draw(st.booleans()),
        retain_handling=draw(st.integers(0, 2)),
    )


def codes_of(values: list[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=5).map(tuple)


def client_packets(version: int) -> st.SearchStrategy[Packet]:
    """Give what a client may send after its CONNECT."""
    client = Sender.CLIENT
    subscribed = st.lists(subscriptions(version), min_size=1, max_size=4).map(tuple)
    left = st.lists(plain_filters | shared_filters, min_size=1, max_size=4).map(tuple)
    every: list[st.SearchStrategy[Packet]] = [
        publishes(version, client),
        acknowledgements(version, client),
        st.builds(Subscribe, identifiers, subscribed, properties(P.SUBSCRIBE, version, client)),
        st.builds(Unsubscribe, identifiers, left, properties(P.UNSUBSCRIBE, version, client)),
        st.just(PingReq()),
    ]
    if version == V5:
        every.append(st.builds(Auth, st.sampled_from([0x18, 0x19]), properties(P.AUTH, V5, client)))
    return st.one_of(every)


def server_packets(version: int) -> st.SearchStrategy[Packet]:
    """Give what a server may send after its CONNACK."""
    server = Sender.SERVER
    granted = codes_of([0, 1, 2, 0x80, 0x8F] if version == V5 else [0, 1, 2, 0x80])
    left = codes_of([0, 0x11, 0x87]) if version == V5 else st.just(())
    every: list[st.SearchStrategy[Packet]] = [
        publishes(version, server),
        acknowledgements(version, server),
        st.builds(SubAck, identifiers, granted, properties(P.SUBACK, version, server)),
        st.builds(UnsubAck, identifiers, left, properties(P.UNSUBACK, version, server)),
        st.just(PingResp()),
    ]
    if version == V5:
        every.append(st.builds(Auth, st.sampled_from([0x00, 0x18]), properties(P.AUTH, V5, server)))
    return st.one_of(every)


def disconnects(version: int, sender: Sender) -> st.SearchStrategy[Disconnect]:
    """Give the last packet of a side."""
    if version == V3:
        return st.just(Disconnect())
    codes = [0, 0x04, 0x81, 0x93] if sender is Sender.CLIENT else [0, 0x81, 0x8B, 0x8E, 0x95]
    return st.builds(Disconnect, st.sampled_from(codes), properties(P.DISCONNECT, V5, sender))


def packets_of(sender: Sender, version: int) -> st.SearchStrategy[Packet]:
    """Give what a side may send once the connection stands."""
    return client_packets(version) if sender is Sender.CLIENT else server_packets(version)


def first_of(sender: Sender, version: int) -> st.SearchStrategy[Packet]:
    """Give the packet with which a side begins."""
    return connects(version) if sender is Sender.CLIENT else connacks(version)
