"""Any packets in any order, legal or not, with a node that answers as it likes: what holds whatever happens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from angarium.errors import error_for
from gateway.mqtt.clients.client import ClientState
from gateway.mqtt.clients.settings import Capabilities, Settings
from gateway.mqtt.codec import errors as rules
from gateway.mqtt.codec.acknowledge import PubAck
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from tests.unit.gateway import random_packets
from tests.unit.gateway.clients.conversation import Conversation

if TYPE_CHECKING:
    from gateway.mqtt.codec import Packet

#: Few, so that they meet.
TOPIC_FILTERS = ["a", "a/#", "a/+", "b/#", "#", "$share/g/a/#", "$share/g/a", "x*", "$P2P/INB/n/0123456789ab"]
CODES = [errors.SUBSCRIBE_DENIED, errors.MAX_SUBSCRIPTIONS_EXCEEDED]


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Give packets of clients; half of them are about subscriptions that overlap."""
    numbers = st.integers(1, 0xFFFF)
    filters = st.lists(st.sampled_from(TOPIC_FILTERS), min_size=1, max_size=4)
    one = st.builds(Subscription, st.sampled_from(TOPIC_FILTERS), st.integers(0, 2))
    subscribes = st.builds(Subscribe, numbers, st.lists(one, min_size=1, max_size=4).map(tuple))
    unsubscribes = st.builds(Unsubscribe, numbers, filters.map(tuple))
    any_other = st.one_of(random_packets.client_packets(version), random_packets.connects(version))
    return st.one_of(subscribes, unsubscribes, st.just(PingReq()), any_other)


def steps(version: int) -> st.SearchStrategy[list[tuple[str, Any]]]:
    faults = st.sampled_from([rules.TRUNCATED, rules.TOO_LARGE, rules.QOS_3])
    broken = st.builds(PacketError, faults, st.just("what was found"), st.sampled_from([version, 0]))
    said = st.tuples(st.just("says"), packets(version))
    told = st.tuples(
        st.just("node"), st.sets(st.sampled_from(["a", "a/>", "b", "b/>", ">", "#share/g/a"]), max_size=3)
    )
    others = st.sampled_from([("room", True), ("room", False), ("wait", 4.0), ("wait", 40.0)])
    ends = st.sampled_from([("ends", errors.TAKEN_OVER), ("end", errors.SHUTTING_DOWN), ("lost", "")])
    return st.lists(
        st.one_of(said, said, said, told, told, others, ends, st.tuples(st.just("says"), broken)), max_size=25
    )


class Run:
    """One client, and what it is owed."""

    def __init__(self, version: int, qos_max: int) -> None:
        can = Capabilities(qos_max=qos_max, retain=True, wills=True)
        self.talk = Conversation(version, Settings(capabilities=can, topic_alias_max=65_535))
        #: Answers that are owed, by their type and packet identifier.
        self.owed: Counter[tuple[type, int]] = Counter()

    def step(self, what: str, value: Any) -> None:
        talk = self.talk
        if what == "says":
            self.says(value)
        elif what == "node":
            self.node(value)
        elif what == "room" and talk.attached:
            talk.attached.is_full = not value
        elif what == "wait":
            talk.now += value
            talk.client.tick(talk.now)
        elif what == "ends" and talk.client.state is ClientState.HERE:
            talk.node_ends(value)
        elif what == "end":
            talk.client.end(error_for(value), talk.now)
        elif what == "lost":
            talk.client.lost("the connection was closed", talk.now)
        self.hear()

    def says(self, packet: Packet | PacketError) -> None:
        if isinstance(packet, Connect) and self.talk.client.state is ClientState.NEW:
            self.talk.expect(packet.properties)
        if self.talk.client.state is ClientState.GONE or not self.talk.offers(packet):
            return
        if isinstance(packet, Subscribe):
            self.owed[SubAck, packet.packet_id] += 1
        elif isinstance(packet, Unsubscribe):
            self.owed[UnsubAck, packet.packet_id] += 1
        elif isinstance(packet, PingReq):
            self.owed[PingResp, 0] += 1
        elif isinstance(packet, Publish) and packet.qos:
            self.owed[PubAck, packet.packet_id] += 1

    def node(self, refused: set[str]) -> None:
        talk = self.talk
        if talk.client.state is ClientState.JOINING:
            talk.welcome()
        elif talk.attached and talk.attached.asked and talk.client.state is ClientState.HERE:
            is_joining = talk.attached.asked[0] == b"S"
            codes = dict.fromkeys(refused & set(talk.attached.asked[1]), errors.SUBSCRIBE_DENIED)
            talk.node_answers(codes if is_joining else {})
        elif talk.attached and talk.attached.unanswered and talk.client.state is ClientState.HERE:
            talk.node_stores()
        elif talk.attached and talk.attached.requests and talk.client.state is ClientState.HERE:
            talk.node.session.refused = dict.fromkeys(refused, errors.SUBSCRIBE_DENIED)
            talk.node_carries_out()

    def hear(self) -> None:
        for packet in self.talk.hears():
            assert not isinstance(packet, ConnAck) or self.talk.finished
            if isinstance(packet, (SubAck, UnsubAck, PingResp, PubAck)):
                key = type(packet), getattr(packet, "packet_id", 0)
                assert self.owed[key] > 0, "an answer to nothing"
                self.owed[key] -= 1

    def finish(self) -> None:
        """Have the node do what is left; then nothing is owed, or the connection is over and all is given back."""
        talk = self.talk
        if talk.client.state is ClientState.JOINING:
            talk.welcome()
        if talk.attached:
            talk.attached.is_full = False
        while talk.client.state is ClientState.HERE and (
            talk.node.asked
            or talk.node.unanswered
            or talk.node.requests
            or talk.client.tick(talk.now) < talk.now + 1
        ):
            self.node(set())
            self.hear()
        self.hear()
        if talk.client.state is ClientState.HERE:
            assert +self.owed == Counter()
        else:
            assert talk.client.state in (ClientState.NEW, ClientState.GONE)
            assert talk.fanned_out == set()
            assert talk.attached is None or talk.attached.is_over


@given(st.data(), st.sampled_from([V3, V5]), st.integers(0, 1), st.sampled_from(["new", "joining", "here"]))
def test_nothing_is_raised_it_ends_once_and_everything_is_answered_once(
    data: st.DataObject, version: int, qos_max: int, begin: str
) -> None:
    """That it ends once, says nothing after it and asks nothing twice is what the conversation checks."""
    run = Run(version, qos_max)
    if begin != "new":
        run.talk.connect(keep_alive=20)
    if begin == "here":
        run.talk.welcome()
    for what, value in data.draw(steps(version)):
        run.step(what, value)
    run.finish()


@given(st.lists(st.sampled_from([Disconnect(), PingReq()]), max_size=3), st.binary(max_size=60))
def test_bytes_of_anybody_are_answered_or_end_the_connection(said: list[Packet], data: bytes) -> None:
    talk = Conversation().connect()
    talk.says_bytes(data)
    if talk.client.state is ClientState.JOINING:
        talk.welcome()
    for one in said:
        talk.offers(one)
    talk.hears()
