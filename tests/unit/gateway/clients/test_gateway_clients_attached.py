"""The node that conversations of tests play tells a client what a carrier does whose router is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.errors import ReasonCode
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, Subscription, Unsubscribe
from tests.unit.gateway.clients.conversation import RIGHTS, Conversation, FakeSession
from tests.unit.gateway.played_router import Gateway

if TYPE_CHECKING:
    from gateway.attached import Attached, Guest, Login
    from gateway.mqtt.codec import Packet
    from gateway.mqtt.codec.connect import ConnAck


class CarriedConversation(Conversation):
    """The same with a real carrier, whose router the test plays."""

    def __init__(self, version: int = V5) -> None:
        super().__init__(version)
        self.gateway = Gateway()
        self.now = self.gateway.now
        #: What the router was sent, and nobody has looked at.
        self.sent: list[list[bytes]] = []
        self.session = FakeSession()

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Any:
        self.real: Attached = self.gateway.carriers.attach(vpn, guest, login, now)
        return self.real

    def welcome(self, name: str = "c", **fields: Any) -> ConnAck:
        self.gateway.turn()
        self.gateway.welcome()
        rights = [getattr(RIGHTS, one) for one in RIGHTS.__struct_fields__]
        self.gateway.welcome_client(self.real.number, name, rights)
        self.node_works()
        self.go_on()
        return self.hears_first()

    def node_works(self) -> None:
        """Carry out what is asked of the session."""
        while asked := self.takes(wire.REQUEST):
            ((_, header),) = asked
            request, name, arguments = wire.unpack(header)
            operations = {"session.open": self.session.opened, "session.change": self.session.changed}
            answer = (request, 0, operations[name](arguments))
            self.gateway.says_to(self.real.number, wire.ANSWER, answer)

    def takes(self, operation: bytes) -> list[list[bytes]]:
        """Take the frames of an operation that the router was sent, of the carrier or of the client."""
        self.gateway.turn()
        self.sent += [frames[2:] if frames[0] == wire.ATTACHED else frames for frames in self.gateway.sent()]
        found = [frames for frames in self.sent if frames[0] == operation]
        self.sent = [frames for frames in self.sent if frames[0] != operation]
        return found

    def node_answers(self, refused: dict[str, int] | None = None) -> None:
        """Answer all that is asked, in the pieces in which it comes."""
        refused = refused or {}
        while asked := self.takes(wire.SUBSCRIBE) or self.takes(wire.UNSUBSCRIBE):
            ((_, header),) = asked
            request, filters, _ = wire.unpack(header)
            codes = [(refused[one], "") if one in refused else None for one, _ in filters]
            self.gateway.says_to(self.real.number, wire.SUBACK, (request, codes))

    node_does_all = node_answers

    def node_ends(self, code: int, detail: str = "") -> None:
        self.gateway.says_to(self.real.number, wire.CLOSED, (code, detail))

    def brings(self, share: str, topic: str) -> None:
        batch = wire.pack([[0, topic, 0, None, None, b""]])
        self.gateway.says_to(self.real.number, wire.DELIVER, (0, [(1, share)], 0), batch)

    def gone(self) -> list[str]:
        """Give the topics that were published."""
        batches = [batch for frames in self.takes(wire.PUBLISH) for batch in frames[2:]]
        return [row[1] for batch in batches for row in wire.unpack(batch)]


class PlayedConversation(Conversation):
    """The one of all other tests, where a conversation with a carrier has other words."""

    def brings(self, share: str, topic: str) -> None:
        self.client.delivered([(0, topic, 0, None, None, b"")], share, self.now)

    def gone(self) -> list[str]:
        published, self.node.published = self.node.published, []
        return [row[0] for row in published]


def heard_in(talk: CarriedConversation | PlayedConversation) -> list[Packet | list[Any]]:
    """Have a client do a bit of everything, and give all that came of it."""
    many = tuple(Subscription(f"t/{number}") for number in range(20))
    talk.connect()
    talk.says(Publish("early", b""), Subscribe(1, (*many, Subscription("a/#"), Subscription("$share/g/b"))))
    heard: list[Packet | list[Any]] = [talk.welcome()]
    talk.node_answers({"t/17": errors.SUBSCRIBE_DENIED, "a/>": errors.MAX_SUBSCRIPTIONS_EXCEEDED})
    talk.node_does_all()
    heard += talk.hears()
    talk.brings("#share/g/b", "b")
    heard.append(talk.delivered)
    talk.says(Publish("one", b""), Publish("secret/two", b""), Publish("x" * 251, b""), PingReq())
    heard += [talk.gone(), *talk.hears()]
    talk.says(Unsubscribe(2, ("t/0", "a/#", "$share/g/b")))
    talk.node_does_all()
    return [*heard, *talk.hears()]


@pytest.mark.parametrize("version", [V3, V5])
def test_a_client_hears_the_same_of_both(version: int) -> None:
    heard = heard_in(PlayedConversation(version))
    assert heard == heard_in(CarriedConversation(version))
    assert len(heard) == 6
    assert ["early", "one"] in heard


def test_what_a_client_drops_is_counted_in_both() -> None:
    played, carried = PlayedConversation(), CarriedConversation()
    for talk in (played, carried):
        heard_in(talk)
    assert carried.real.counts().totals == played.node.counts
    assert len(played.node.counts) == 2


@pytest.mark.parametrize("code", [errors.TAKEN_OVER, errors.DISCONNECTED_BY_OPERATOR])
def test_an_end_at_the_node_is_told_by_both_and_nothing_after_it(code: int) -> None:
    for talk in (PlayedConversation(), CarriedConversation()):
        talk.here()
        talk.node_ends(code, "why")
        assert talk.finished
        (told,) = talk.hears()
        assert isinstance(told, Disconnect)
        assert told.code in (ReasonCode.SESSION_TAKEN_OVER, ReasonCode.ADMINISTRATIVE_ACTION)


def test_who_disconnects_leaves_a_carrier_with_a_bye() -> None:
    talk = CarriedConversation()
    talk.here()
    talk.says(Publish("last", b""), Disconnect())
    talk.gateway.turn()
    operations = [frames[2] if frames[0] == wire.ATTACHED else frames[0] for frames in talk.gateway.sent()]
    assert [one for one in operations if one in (wire.PUBLISH, wire.BYE)] == [wire.PUBLISH, wire.BYE]


def lose(talk: CarriedConversation) -> None:
    """The router dies, and the next one has let the carrier in."""
    gateway = talk.gateway
    gateway.line.lose(errors.error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.turn()
    gateway.now += 1.0
    gateway.turn()
    gateway.welcome()


def welcome_again(talk: CarriedConversation) -> None:
    rights = [getattr(RIGHTS, one) for one in RIGHTS.__struct_fields__]
    talk.gateway.welcome_client(talk.real.number, "c", rights, resumed=True)
    talk.go_on()


@pytest.mark.requirement("R230")
@pytest.mark.parametrize("version", [V3, V5])
def test_a_client_stays_when_its_router_is_replaced_and_has_its_filters_again(version: int) -> None:
    talk = CarriedConversation(version)
    talk.here()
    talk.says(Subscribe(1, (Subscription("a/#"), Subscription("b"), Subscription("$share/g/c"))))
    talk.node_answers()
    talk.says(Unsubscribe(2, ("b",)))
    talk.node_answers()
    talk.hears()
    lose(talk)
    talk.says(PingReq(), Publish("late", b""))
    assert talk.hears() == [PingResp()], "what it publishes waits"
    welcome_again(talk)
    ((_, header),) = talk.takes(wire.SUBSCRIBE)
    request, filters, _ = wire.unpack(header)
    assert [one for one, _ in filters] == ["a", "a/>", "#share/g/c"]
    talk.gateway.says_to(talk.real.number, wire.SUBACK, (request, [None] * 3))
    assert talk.gone() == ["late"]
    assert talk.hears() == []
    assert not talk.finished


def test_who_may_not_have_its_filters_any_more_is_told_so() -> None:
    talk = CarriedConversation()
    talk.here()
    talk.says(Subscribe(1, (Subscription("a"), Subscription("b"))))
    talk.node_answers()
    talk.hears()
    lose(talk)
    welcome_again(talk)
    talk.node_answers({"b": errors.SUBSCRIBE_DENIED})
    (told,) = talk.hears()
    assert isinstance(told, Disconnect)
    assert told.code == ReasonCode.NOT_AUTHORIZED


def test_what_it_asks_for_meanwhile_is_answered_by_the_next_router() -> None:
    talk = CarriedConversation()
    talk.here()
    lose(talk)
    talk.says(Subscribe(1, (Subscription("a"),)), Disconnect())
    assert talk.hears() == []
    assert not talk.finished
    welcome_again(talk)
    talk.node_answers()
    talk.go_on()
    assert talk.hears() == [SubAck(1, (0,))]
    assert talk.finished
    assert talk.takes(wire.BYE)


def test_whose_topic_for_responses_goes_with_the_router_ends_and_may_come_again() -> None:
    talk = CarriedConversation()
    talk.here(properties=Properties(request_response_information=1))
    lose(talk)
    (told,) = talk.hears()
    assert isinstance(told, Disconnect)
    assert told.code == ReasonCode.SERVER_BUSY
