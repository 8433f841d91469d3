"""What an MQTT client subscribes to: SUBSCRIBE and UNSUBSCRIBE, one after the other, each answered when it is done.

A topic filter of MQTT is one or two filters of the node (`a/#` is `a` and `a/>`), and two of MQTT may have one of the
node in common. So the node is asked for those that are not in force yet, and told to forget those that nobody needs any
more. A topic filter is granted if all of its filters are; what was granted beside a refused one is given back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from angarium import errors, wire
from gateway.mqtt.clients.reasons import fitting, reason_of
from gateway.mqtt.clients.settings import FILTERS_MAX, REQUESTS_MAX
from gateway.mqtt.codec.kinds import PacketType
from gateway.mqtt.codec.subscribe import SubAck, Subscribe, UnsubAck, Unsubscribe
from gateway.mqtt.codec.topics import shared
from gateway.mqtt.delivering import MqttSubscription
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.attached import Attached
    from gateway.mqtt.clients.host import Host
    from gateway.mqtt.clients.settings import Capabilities
    from gateway.mqtt.codec.subscribe import Subscription
    from gateway.mqtt.delivering import MqttReceiver

#: What the node said to filters: 0 or an error code.
_Answers: TypeAlias = "Mapping[str, int]"
#: Sends the answer to a packet, with the error code of the first topic filter in it that was refused, or 0.
Reply: TypeAlias = "Callable[[SubAck | UnsubAck, int], None]"


class Subscribing:
    """The subscriptions of one client, from its CONNACK on."""

    __slots__ = (
        "_asked",
        "_attached",
        "_capabilities",
        "_granted",
        "_host",
        "_receiver",
        "_reply",
        "_requests",
        "_then",
        "_users",
    )

    def __init__(
        self, receiver: MqttReceiver, attached: Attached, host: Host, capabilities: Capabilities, reply: Reply
    ) -> None:
        self._receiver = receiver
        self._attached = attached
        self._host = host
        self._capabilities = capabilities
        self._reply = reply
        #: Topic filter -> subscription.
        self._granted: dict[str, MqttSubscription] = {}
        #: Filter of the node -> the topic filters in `_granted` that need it. All of them are in force there.
        self._users: dict[str, tuple[str, ...]] = {}
        #: Packets that wait for the one that is under way; REQUESTS_MAX at most, and none if none is.
        self._requests: list[Subscribe | Unsubscribe] = []
        #: What the node is asked, and what is done with its answers; None if it is asked nothing.
        self._asked: tuple[str, ...] = ()
        self._then: Callable[[_Answers], None] | None = None

    def take(self, packet: Subscribe | Unsubscribe) -> bool:
        """Do what a packet says, now or later; false if too many wait."""
        if len(self._requests) >= REQUESTS_MAX:
            return False
        self._requests.append(packet)
        self._go_on()
        return True

    def _go_on(self) -> None:
        while self._requests and self._then is None:
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
        self._asked, self._then = asked, then
        # Every subscriber of MQTT gets every message; the node would choose one of those that did not say so.
        operation([(one, wire.SUBSCRIBE_DELIVER_ALWAYS) for one in asked])

    def answered(self, codes: Sequence[int]) -> None:
        """Go on with what the node said to what it was asked."""
        assert self._then is not None
        then, self._then = self._then, None
        then(dict(zip(self._asked, codes, strict=True)))
        self._go_on()

    # -- SUBSCRIBE -------------------------------------------------------------------------------------------

    def _subscribe(self, packet: Subscribe) -> None:
        wanted = [self._wanted(one.filter) for one in packet.subscriptions[:FILTERS_MAX]]
        wanted += [errors.MAX_SUBSCRIPTIONS_EXCEEDED] * (len(packet.subscriptions) - FILTERS_MAX)
        new = [
            one
            for filters in wanted
            if isinstance(filters, tuple)
            for one in filters
            if one not in self._users
        ]
        self._ask(self._attached.subscribe, new, partial(self._subscribed, packet, wanted))

    def _wanted(self, text: str) -> tuple[str, ...] | int:
        """Give the filters of the node that a topic filter is, or the error code for which it is none."""
        if shared(text) and not (self._capabilities.shared_subscriptions and self._attached.rights.may_share):
            return errors.SHARED_SUBSCRIPTION_DENIED
        try:
            return filters_of(text)
        except errors.InvalidRequestError as error:
            return error.code

    def _subscribed(self, packet: Subscribe, wanted: list[tuple[str, ...] | int], answers: _Answers) -> None:
        identifier = next(iter(packet.properties.subscription_identifiers), None)
        codes: list[int] = []
        refusals: list[int] = []
        for options, filters in zip(packet.subscriptions, wanted, strict=True):
            refusal = filters if isinstance(filters, int) else _first_refusal(filters, answers)
            if refusal:
                refusals.append(refusal)
                codes.append(fitting(reason_of(refusal), PacketType.SUBACK, self._receiver.version))
            else:
                codes.append(self._grant(options, identifier))
        self._reply(SubAck(packet.packet_id, tuple(codes)), refusals[0] if refusals else 0)
        unused = [one for one, code in answers.items() if not code and one not in self._users]
        self._ask(self._attached.unsubscribe, unused, _nothing)

    def _grant(self, options: Subscription, identifier: int | None) -> int:
        """Put a subscription in force, in place of that with the same topic filter [MQTT-3.8.4-3]; give its QoS."""
        text = options.filter
        qos = min(options.qos, self._capabilities.subscription_qos_max)
        if qos != options.qos:
            options = msgspec.structs.replace(options, qos=qos)
        before = self._granted.get(text)
        made = self._granted[text] = MqttSubscription(self._receiver, options, identifier)
        if not shared(text):
            if before:
                self._host.remove(before)
            self._host.add(made)
        if before is None:
            for one in filters_of(text):
                self._users[one] = (*self._users.get(one, ()), text)
        return qos

    # -- UNSUBSCRIBE -----------------------------------------------------------------------------------------

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        """Stop at once [MQTT-3.10.4-2]; the answer waits until the node has, too."""
        left = [self._leave(text) for text in packet.filters]
        unused = [one for filters in left for one in filters or () if one not in self._users]
        self._ask(self._attached.unsubscribe, unused, partial(self._unsubscribed, packet, left))

    def _leave(self, text: str) -> tuple[str, ...] | None:
        """Forget a subscription and give its filters of the node; None if there is none."""
        subscription = self._granted.pop(text, None)
        if subscription is None:
            return None
        if not shared(text):
            self._host.remove(subscription)
        filters = filters_of(text)
        for one in filters:
            others = tuple(other for other in self._users.pop(one) if other != text)
            if others:
                self._users[one] = others
        return filters

    def _unsubscribed(
        self, packet: Unsubscribe, left: list[tuple[str, ...] | None], answers: _Answers
    ) -> None:
        refusals = [
            errors.SUBSCRIPTION_NOT_FOUND if one is None else _first_refusal(one, answers) for one in left
        ]
        codes = tuple([fitting(reason_of(code), PacketType.UNSUBACK) if code else 0 for code in refusals])
        self._reply(UnsubAck(packet.packet_id, codes), next(filter(None, refusals), 0))

    # -- the rest --------------------------------------------------------------------------------------------

    def needing(self, text: str) -> list[MqttSubscription]:
        """Give the subscriptions that need a filter of the node."""
        return [self._granted[one] for one in self._users.get(text, ())]

    def clear(self) -> None:
        """Forget all of them; the client is gone."""
        for text, subscription in self._granted.items():
            if not shared(text):
                self._host.remove(subscription)
        self._granted.clear()
        self._users.clear()
        self._requests.clear()

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        users = sorted((one, text) for text in self._granted for one in filters_of(text))
        assert users == sorted((one, text) for one, texts in self._users.items() for text in texts)
        assert len(self._requests) <= REQUESTS_MAX
        assert self._then is not None or not self._requests


def _first_refusal(filters: tuple[str, ...], answers: _Answers) -> int:
    return next((code for one in filters if (code := answers.get(one, 0))), 0)


def _nothing(_answers: _Answers) -> None:
    """Go on without looking at the answers: what was given back is not there, one way or the other."""
