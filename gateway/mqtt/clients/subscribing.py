"""What an MQTT client subscribes to: SUBSCRIBE and UNSUBSCRIBE, one after the other, each answered when it is done.

A topic filter of MQTT is one or two filters of the node (`a/#` is `a` and `a/>`), and two of MQTT may have one of the
node in common. One with QoS 0 is the carrier's; with QoS 1 its messages come to the queue of the session, and it is
there instead; if it is shared, to a queue of all who share it. So the node is asked for those that are not in force
yet, and told to forget those that nobody needs any more. A topic filter is granted if all of its filters are; what was
granted beside a refused one is given back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from angarium import errors, wire
from angarium.client.protocol.flow_window import is_passing
from gateway.attached import nothing
from gateway.mqtt.clients.reasons import fitting, reason_of
from gateway.mqtt.clients.settings import REQUESTS_MAX
from gateway.mqtt.codec.kinds import PacketType
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, UnsubAck, Unsubscribe
from gateway.mqtt.codec.topics import shared
from gateway.mqtt.delivering import MqttReceiver, MqttSubscription
from gateway.mqtt.sessions.session import has_own_queue
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.attached import Attached
    from gateway.mqtt.clients.host import Host
    from gateway.mqtt.clients.settings import Capabilities
    from gateway.mqtt.codec.subscribe import Subscription
    from gateway.mqtt.sessions.session import Session

#: What the node sends to one client alone is not queued.
_ADDRESSES: Final = "$P2P/"
#: What the node said to filters: 0 or an error code.
_Answers: TypeAlias = "Mapping[str, int]"


class Subscriber(MqttReceiver, Protocol):
    """The client."""

    def reply(self, packet: SubAck | UnsubAck, refusal_code: int) -> None:
        """It is sent the answer to a packet, with the code of the first topic filter that was refused, or 0."""


class _Wanted(NamedTuple):
    """A topic filter of a SUBSCRIBE."""

    #: With the QoS that is granted.
    subscription: MqttSubscription
    #: Of the node.
    filters: tuple[str, ...]
    #: Why it is not granted: an error code, or 0.
    refusal: int

    @property
    def text(self) -> str:
        """The topic filter."""
        return self.subscription.options.filter

    @property
    def is_direct(self) -> bool:
        """Whether its messages come without a queue."""
        return not self.refusal and not self.subscription.options.qos

    def judged(self, refusal: int) -> _Wanted:
        """Give the same with what the node said."""
        return self._replace(refusal=refusal)


class Subscribing:
    """The subscriptions of one client, from its CONNACK on."""

    __slots__ = (
        "_asked",
        "_attached",
        "_bare",
        "_capabilities",
        "_granted",
        "_host",
        "_receiver",
        "_requests",
        "_session",
        "_users",
        "then",
    )

    def __init__(
        self,
        receiver: Subscriber,
        attached: Attached,
        host: Host,
        capabilities: Capabilities,
        session: Session | None,
    ) -> None:
        self._receiver = receiver
        self._attached = attached
        self._host = host
        self._capabilities = capabilities
        self._session = session
        #: Topic filter -> subscription.
        self._granted: dict[str, MqttSubscription] = {}
        #: Filter of the node -> the topic filters in `_granted` that need it. All of them are in force there.
        self._users: dict[str, tuple[str, ...]] = {}
        #: Packets that wait for the one that is under way; REQUESTS_MAX at most, and none if none is.
        self._requests: list[Subscribe | Unsubscribe] = []
        #: Filters that came into force with the last SUBSCRIBE, and for which nothing is retained.
        self._bare: frozenset[str] = frozenset()
        #: What the node is asked, and what is done with its answers; None if all that it was asked is in force.
        self._asked: tuple[str, ...] = ()
        self.then: Callable[[_Answers], None] | None = None

    def take(self, packet: Subscribe | Unsubscribe) -> bool:
        """Do what a packet says, now or later; false if too many wait."""
        if len(self._requests) >= REQUESTS_MAX:
            return False
        self._requests.append(packet)
        self._go_on()
        return True

    def _go_on(self) -> None:
        while self._requests and self.then is None:
            packet = self._requests.pop(0)
            if isinstance(packet, Subscribe):
                self._subscribe(packet)
            else:
                self._unsubscribe(packet)

    def _ask(
        self,
        operation: Callable[[Sequence[tuple[str, int]]], None],
        filters: Iterable[str],
        then: Callable[[_Answers], None],
    ) -> None:
        asked = tuple(dict.fromkeys(filters))
        if not asked:
            then({})
            return
        self._asked, self.then = asked, then
        # Every subscriber of MQTT gets every message; the node would choose one of those that did not say so.
        operation(_always(asked))

    @property
    def in_force(self) -> list[tuple[str, int]]:
        """The filters of the node that are, as they are asked for."""
        return _always(self._users)

    def answered(self, codes: Sequence[int]) -> None:
        """Go on with what the node said to what it was asked.

        Raises:
            AngariumError: the client cannot have what its session has, only now: it is to come again.
        """
        assert self.then is not None
        then, self.then = self.then, None
        then(dict(zip(self._asked, codes, strict=True)))
        self._go_on()

    def changed(self, answers: _Answers) -> None:
        """Go on with what the node said to a change of the session.

        Raises:
            AngariumError: as above.
        """
        assert self.then is not None
        then, self.then = self.then, None
        then(answers)
        self._go_on()

    def _change(
        self, put: Sequence[MqttSubscription], drop: Sequence[str], then: Callable[[_Answers], None]
    ) -> None:
        if not put and not drop:
            then({})
            return
        assert self._session is not None
        self.then = then
        self._session.change(put, drop)

    # -- SUBSCRIBE -------------------------------------------------------------------------------------------

    def _subscribe(self, packet: Subscribe) -> None:
        identifier = next(iter(packet.properties.subscription_identifiers), None)
        wanted = [self._wanted(one, identifier) for one in packet.subscriptions]
        new = [one for each in wanted if each.is_direct for one in each.filters if one not in self._users]
        self._ask(self._attached.subscribe, new, partial(self._has_direct, packet, wanted))

    def _wanted(self, options: Subscription, identifier: int | None) -> _Wanted:
        """Say what a subscription comes to; the node is asked afterwards."""
        text = options.filter
        share = shared(text)
        pattern = share.filter if share else text
        has_queue = self._session is not None and not pattern.startswith(_ADDRESSES)
        qos = min(options.qos, self._capabilities.qos_max if has_queue else 0)
        if qos != options.qos:
            options = msgspec.structs.replace(options, qos=qos)
        one = MqttSubscription(self._receiver, options, identifier)
        if share and not (self._capabilities.shared_subscriptions and self._attached.rights.may_share):
            return _Wanted(one, (), errors.SHARED_SUBSCRIPTION_DENIED)
        try:
            return _Wanted(one, filters_of(text), 0)
        except errors.InvalidRequestError as error:
            return _Wanted(one, (), error.code)

    def _has_direct(self, packet: Subscribe, wanted: list[_Wanted], answers: _Answers) -> None:
        """Go on with the queues that are shared."""
        judged = [
            one.judged(_first_refusal(one.filters, answers)) if one.is_direct else one for one in wanted
        ]
        new = [one for one, code in answers.items() if not code]
        self._bare = frozenset(() if self._attached.may_be_retained else new)
        joining = [
            one.subscription for one in judged if not one.refusal and _has_shared_queue(one.subscription)
        ]
        self._share(joining, partial(self._has_shared, packet, judged, new))

    def _share(self, joining: Sequence[MqttSubscription], then: Callable[[_Answers], None]) -> None:
        """Have the queues of shared filters, and go on with what the node says to each."""
        if not joining:
            then({})
            return
        assert self._session is not None
        answers = self._session.share(joining)
        if answers is None:
            self.then = then
        else:
            then(answers)

    def _has_shared(
        self, packet: Subscribe, wanted: list[_Wanted], new: list[str], answers: _Answers
    ) -> None:
        """Go on with the session: it has what is to have QoS 1, and if it is kept, all others too."""
        judged = [one.judged(one.refusal or answers.get(one.text, 0)) for one in wanted]
        # Of a topic filter that is there more than once, the last one counts.
        last = {one.text: one.subscription for one in judged if not one.refusal}
        put = [one for one in last.values() if has_own_queue(one) or self._is_kept]
        drop = [text for text, one in last.items() if one not in put and self._has_queued(text)]
        self._change(put, drop, partial(self._subscribed, packet, judged, new))

    @property
    def _is_kept(self) -> bool:
        """Whether the session outlives the connection, and knows all that is subscribed to."""
        return self._session is not None and not self._session.is_temporary

    def _has_queued(self, text: str) -> bool:
        before = self._granted.get(text)
        return before is not None and has_own_queue(before)

    def _has_shared_queue(self, text: str) -> bool:
        before = self._granted.get(text)
        return before is not None and _has_shared_queue(before)

    def _subscribed(
        self, packet: Subscribe, wanted: list[_Wanted], new: list[str], answers: _Answers
    ) -> None:
        codes: list[int] = []
        begun: dict[str, None] = {}  # a topic filter may come twice
        refusals: list[int] = []
        for one in wanted:
            refusal = one.refusal or answers.get(one.text, 0)
            if refusal:
                refusals.append(refusal)
                self._refuse(one)
                codes.append(fitting(reason_of(refusal), PacketType.SUBACK, self._receiver.version))
            else:
                is_known = one.text in self._granted
                codes.append(one.subscription.options.qos)
                new += self._grant(one.subscription)
                if _wants_retained(one.subscription.options, is_known=is_known) and not self._is_bare(one):
                    begun[one.text] = None
        self._receiver.reply(SubAck(packet.packet_id, tuple(codes)), refusals[0] if refusals else 0)
        if begun:
            self._host.read_retained([self._granted[text] for text in begun])
        self._ask(self._attached.unsubscribe, [one for one in new if one not in self._users], nothing)

    def _is_bare(self, one: _Wanted) -> bool:
        """Tell whether nothing is retained for what is granted, as the node said when it came into force."""
        return one.is_direct and bool(one.filters) and self._bare.issuperset(one.filters)

    def _refuse(self, one: _Wanted) -> None:
        """Leave the queue that was shared for nothing: the session cannot have it."""
        if not one.refusal and _has_shared_queue(one.subscription) and not self._has_shared_queue(one.text):
            assert self._session is not None
            self._session.remove(one.subscription)

    def _grant(self, made: MqttSubscription) -> tuple[str, ...]:
        """Put a subscription in force, in place of that with the same topic filter [MQTT-3.8.4-3].

        Gives the filters of the node that this one had.
        """
        text = made.options.filter
        if _has_shared_queue(made) and self._has_shared_queue(text):
            left: tuple[str, ...] = ()  # it stays a member
        elif has_own_queue(made) and self._has_queued(text):
            self._host.leave_retained(self._granted[text])
            left = ()  # the session has the new one in its place
        else:
            left = self._leave(text) or ()
        self._granted[text] = made
        if made.options.qos:
            assert self._session is not None
            self._session.add(made)
            return left
        if not shared(text):
            self._host.add(made)
        for one in filters_of(text):
            self._users[one] = (*self._users.get(one, ()), text)
        return left

    def _release(self, subscription: MqttSubscription) -> tuple[str, ...]:
        """Let a subscription have nothing more, and give the filters of the node that it had."""
        text = subscription.options.filter
        self._host.leave_retained(subscription)
        if subscription.options.qos:
            assert self._session is not None
            self._session.remove(subscription)
            return ()
        if not shared(text):
            self._host.remove(subscription)
        filters = filters_of(text)
        for one in filters:
            others = tuple(other for other in self._users.pop(one) if other != text)
            if others:
                self._users[one] = others
        return filters

    # -- a session that goes on ------------------------------------------------------------------------------

    def restore(self, subscriptions: Sequence[MqttSubscription]) -> None:
        """Have the subscriptions of the session; the node keeps those of its queue, and is asked for the others."""
        direct = [one for one in subscriptions if not one.options.qos]
        joining = [one for one in subscriptions if _has_shared_queue(one)]
        self._granted |= {one.options.filter: one for one in subscriptions if has_own_queue(one)}
        self._share(joining, partial(self._rejoined, joining, direct))

    def _rejoined(
        self, joining: list[MqttSubscription], direct: list[MqttSubscription], answers: _Answers
    ) -> None:
        """Go on with those with QoS 0."""
        _raise_passing(answers)
        for one in joining:
            if not answers[one.options.filter]:
                self._grant(one)
        filters = [each for one in direct for each in filters_of(one.options.filter)]
        self._ask(self._attached.subscribe, filters, partial(self._restored, direct))

    def _restored(self, direct: list[MqttSubscription], answers: _Answers) -> None:
        """Have those that are allowed now."""
        _raise_passing(answers)
        for one in direct:
            if not _first_refusal(filters_of(one.options.filter), answers):
                self._grant(one)
        unused = [one for one, code in answers.items() if not code and one not in self._users]
        self._ask(self._attached.unsubscribe, unused, nothing)

    # -- UNSUBSCRIBE -----------------------------------------------------------------------------------------

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        """Stop at once [MQTT-3.10.4-2]; the answer waits until the node has, too."""
        drop = [
            text
            for text in packet.filters
            if text in self._granted and (self._is_kept or self._has_queued(text))
        ]
        left = [self._leave(text) for text in packet.filters]
        unused = [one for filters in left for one in filters or () if one not in self._users]
        then = partial(self._unsubscribed, packet, left)
        self._ask(
            self._attached.unsubscribe, unused, lambda codes: self._change((), drop, lambda _: then(codes))
        )

    def _leave(self, text: str) -> tuple[str, ...] | None:
        """Forget a subscription and give its filters of the node; None if there is none."""
        subscription = self._granted.pop(text, None)
        return None if subscription is None else self._release(subscription)

    def _unsubscribed(
        self, packet: Unsubscribe, left: list[tuple[str, ...] | None], answers: _Answers
    ) -> None:
        refusals = [
            errors.SUBSCRIPTION_NOT_FOUND if one is None else _first_refusal(one, answers) for one in left
        ]
        codes = tuple([fitting(reason_of(code), PacketType.UNSUBACK) if code else 0 for code in refusals])
        self._receiver.reply(UnsubAck(packet.packet_id, codes), next(filter(None, refusals), 0))

    # -- the rest --------------------------------------------------------------------------------------------

    def needing(self, text: str) -> list[MqttSubscription]:
        """Give the subscriptions that need a filter of the node."""
        return [self._granted[one] for one in self._users.get(text, ())]

    def clear(self) -> None:
        """Forget all of them; the client is gone."""
        self._host.forget(self._receiver, self._granted)
        self._granted = {}
        self._users.clear()
        self._requests.clear()
        self.then = None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        direct = [text for text, one in self._granted.items() if not one.options.qos]
        users = sorted((one, text) for text in direct for one in filters_of(text))
        assert users == sorted((one, text) for one, texts in self._users.items() for text in texts)
        assert len(self._requests) <= REQUESTS_MAX
        assert self.then is not None or not self._requests


def as_bridge(packet: Subscribe) -> Subscribe:
    """Give what a SUBSCRIBE of a bridge of 3.1.1 says in 5.0; what is shared is its own, too [MQTT-3.8.3-4]."""
    asked = [
        one if shared(one.filter) else msgspec.structs.replace(one, no_local=True, retain_as_published=True)
        for one in packet.subscriptions
    ]
    return msgspec.structs.replace(packet, subscriptions=tuple(asked))


def _always(filters: Iterable[str]) -> list[tuple[str, int]]:
    return [(one, wire.SUBSCRIBE_DELIVER_ALWAYS) for one in filters]


def _has_shared_queue(one: MqttSubscription) -> bool:
    """Tell whether the messages of a subscription come to a queue that others take from, too."""
    return one.options.qos > 0 and shared(one.options.filter) is not None


def _first_refusal(filters: tuple[str, ...], answers: _Answers) -> int:
    return next((code for one in filters if (code := answers.get(one, 0))), 0)


def _raise_passing(answers: _Answers) -> None:
    """Have a client come again that cannot be told that a subscription of its session is not there, if that may help.

    Raises:
        AngariumError: the node has no time for it, or no memory.
    """
    for code in filter(None, answers.values()):
        if is_passing(code) or code in (errors.CONTROL_RATE_EXCEEDED, errors.MEMORY_EXCEEDED):
            raise errors.error_for(code)


def _wants_retained(options: Subscription, *, is_known: bool) -> bool:
    """Tell whether a subscription begins with what is retained [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]."""
    handling = options.retain_handling
    return (handling == 0 or (handling == 1 and not is_known)) and not shared(options.filter)
