"""One MQTT client: what each of its packets does, when it may come, and how the connection ends.

A client says CONNECT, is logged in at the node, and is here until one of three ends it: itself, the node, or what holds
its connection. Whoever it is, nothing of it is left at the node or in the fan-out afterwards, and it is told the reason
if its version has words for it. Nothing is read of it while its login is under way, so what it says behind its CONNECT,
without waiting for the answer, waits for that.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from angarium.errors import ERRORS, NO_SUBSCRIPTION_MATCH, SESSION_UNKNOWN, AngariumError, error_for
from gateway.mqtt.aliases import Aliases
from gateway.mqtt.clients import rules
from gateway.mqtt.clients.connecting import UNKNOWN, acceptance, login_of, terms_of
from gateway.mqtt.clients.publishing import Publishing
from gateway.mqtt.clients.reasons import fitting, reason_of
from gateway.mqtt.clients.subscribing import Subscribing, as_bridge
from gateway.mqtt.codec import errors, write
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel, stored
from gateway.mqtt.codec.connect import Connect, refusal
from gateway.mqtt.codec.control import Auth, Disconnect, PingReq, PingResp, farewell
from gateway.mqtt.codec.errors import PacketError, ReasonCode
from gateway.mqtt.codec.kinds import V3, V5, PacketType
from gateway.mqtt.codec.properties import NONE, Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Unsubscribe
from gateway.mqtt.sessions.note import NoNote
from gateway.mqtt.sessions.received import Answer, Received
from gateway.mqtt.sessions.session import Session
from gateway.mqtt.sessions.storing import QOS_2, Shared
from gateway.mqtt.sessions.unacknowledged import FAILURE, Awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.message import Row
    from angarium_server.connections.tls import Certificate
    from gateway.attached import Attached
    from gateway.mqtt.clients.host import Host
    from gateway.mqtt.clients.settings import Settings
    from gateway.mqtt.codec import Packet
    from gateway.mqtt.codec.subscribe import SubAck, UnsubAck
    from gateway.mqtt.delivering import MqttSubscription
    from gateway.session import Acknowledged, AttachedWelcome

#: A client that takes nothing may do so for this long at least, however short its keep alive.
PATIENCE_LEAST_S: Final = 60.0
#: So many times the keep alive may a client be silent.
PATIENCE: Final = 1.5
#: Characters of a reason that are told; a detail may quote what the client sent.
REASON_MAX: Final = 300


class ClientState(enum.Enum):
    """Where a client is."""

    NEW = "before its CONNECT"
    JOINING = "its login is under way"
    HERE = "connected"
    GONE = "over"


#: For the path of messages: to look up a member of an enumeration costs more than a call.
_HERE: Final = ClientState.HERE


class Client:
    """One connection."""

    __slots__ = (
        "_address",
        "_aliases",
        "_certificate",
        "_heard_at",
        "_host",
        "_inbox",
        "_is_done",
        "_is_foreign_page",
        "_kept_s",
        "_publishing",
        "_received",
        "_session",
        "_settings",
        "_subscribing",
        "_welcome",
        "attached",
        "connection_id",
        "name",
        "state",
        "terms",
        "vpn",
    )

    def __init__(
        self,
        host: Host,
        settings: Settings,
        connection_id: bytes,
        address: str,
        certificate: Certificate | None,
        vpn: str,
        now: float,
        *,
        is_foreign_page: bool = False,
    ) -> None:
        """Wait for a CONNECT.

        Args:
            host: the process.
            settings: what is granted.
            connection_id: by which the process knows the connection.
            address: where it comes from.
            certificate: what its certificate says, as TLS showed it.
            vpn: the Message VPN of the address that it came to; a token may send it to another one.
            now: the time.
            is_foreign_page: whether it is a page of another site in a browser.
        """
        self.connection_id: Final = connection_id
        #: The Message VPN that it asks to be let into, and when it is here, the one that it is in.
        self.vpn = vpn
        self.state = ClientState.NEW
        #: What was agreed; nothing before the CONNECT.
        self.terms = UNKNOWN
        #: By which the node knows it; empty before it is here.
        self.name = ""
        #: It at the node: as long as its login is under way and while it is here.
        self.attached: Attached | None = None
        self._host = host
        self._settings = settings
        self._address = address
        self._certificate = certificate
        self._is_foreign_page = is_foreign_page
        self._inbox = ""
        #: Whether the client has said that all is well, so that its will is not published.
        self._is_done = False
        #: For how long it wants its session kept at the end; None: as it was agreed.
        self._kept_s: int | None = None
        #: When something came last, be it a part of a packet.
        self._heard_at = now
        #: Those for topics of what is sent to it; None if it takes none.
        self._aliases: Aliases | None = None
        #: What it publishes and what it subscribes to, since it is here.
        self._publishing: Publishing | None = None
        self._subscribing: Subscribing | None = None
        #: `received`, as soon as somebody has asked for it.
        self._received: Received | None = None
        #: Its session, since it is attached; None as long as it is not, and if it may have none.
        self._session: Session | None = None
        #: What the node said when it attached it; until the session is open.
        self._welcome: AttachedWelcome | None = None

    # -- what the connection says ----------------------------------------------------------------------------

    def packet(self, packet: Packet | PacketError, now: float) -> bool:
        """Take a packet, or what was wrong with one; false if it is to be offered again when reading is resumed."""
        self._heard_at = now
        act = _ACTS.get(type(packet), Client._stray)
        try:
            if self.state is _HERE:
                is_taken = act(self, packet, now) is not False
            else:
                is_taken = self._take_early(act, packet, now)
        except PacketError as error:
            # A traceback holds the packet, and that may be the error: a cycle.
            self._broken(error.with_traceback(None), now)
            return True
        if not is_taken:
            self._host.pause(self.connection_id)
        return is_taken

    def _take_early(self, act: _Act, packet: Any, now: float) -> bool:
        """Take a packet of one who is not here, or not any more; false if it is to wait for the login."""
        if self.state is ClientState.JOINING:
            return False
        if self.state is ClientState.NEW:
            if act not in _FIRST:
                raise PacketError(errors.CONNECT_FIRST, type(packet).__name__, self.version)
            act(self, packet, now)
        return True

    def heard(self, at: float) -> None:
        """Note that bytes came then, which need not be a whole packet."""
        self._heard_at = max(self._heard_at, at)

    def lost(self, _reason: str, _now: float) -> None:
        """Note that the connection is gone."""
        self._forget()

    def tick(self, now: float) -> float:
        """Look at the time; gives when to come again, unless it is admitted or woken meanwhile."""
        if self.state is not ClientState.HERE:
            return math.inf
        if self._silent_until <= now:
            found = f"nothing for {PATIENCE * self.terms.keep_alive_s:g} s"
            self._broken(PacketError(rules.SILENCE, found, self.version), now)
        elif self._session:
            self._session.tick(now)
        return self._silent_until if self.state is ClientState.HERE else math.inf

    @property
    def _silent_until(self) -> float:
        """When it has been silent for too long, if nothing comes until then (5.0 section 3.1.2.10)."""
        keep_alive_s = self.terms.keep_alive_s
        return self._heard_at + PATIENCE * keep_alive_s if keep_alive_s else math.inf

    # -- its packets -----------------------------------------------------------------------------------------

    def _connect(self, connect: Connect, now: float) -> None:
        if self.state is not ClientState.NEW:
            raise PacketError(errors.SECOND_CONNECT, "another one", self.version)
        self.terms = terms_of(connect, self._settings)
        login = login_of(
            connect,
            self._settings,
            self._address,
            self._certificate,
            is_foreign_page=self._is_foreign_page,
        )
        self.state = ClientState.JOINING
        self._host.pause(self.connection_id)
        self.attached = self._host.attach(self, login, self.vpn, now)

    def _publish(self, packet: Publish, now: float) -> bool:
        assert self._publishing is not None
        assert self._subscribing is not None
        if self._subscribing.then is not None:  # its own message comes to it if it has subscribed before
            return False
        is_taken = self._publishing.take(packet, now)
        if not is_taken:
            self._host.await_room(self.connection_id, packet.qos)
        return is_taken

    def _subscribe(self, packet: Subscribe | Unsubscribe, _now: float) -> bool:
        assert self._subscribing is not None
        if self.terms.is_bridge and isinstance(packet, Subscribe):
            packet = as_bridge(packet)
        return self._subscribing.take(packet)

    def _ping(self, _packet: PingReq, _now: float) -> None:
        self._send(PingResp())

    def _authenticate(self, packet: Auth, _now: float) -> None:
        raise PacketError(rules.NO_METHOD, f"0x{packet.code:02x}", self.version)

    def _disconnect(self, packet: Disconnect, now: float) -> bool:
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s and not self.terms.session_expiry_s:
            raise PacketError(rules.SESSION_EXPIRY, f"{expiry_s} s", self.version)
        # It counts at once: the connection may break while it waits.
        self._is_done = not packet.code
        self._kept_s = None if expiry_s is None else min(expiry_s, self._settings.session_expiry_max_s)
        if (
            self._subscribing is not None and self._subscribing.then is not None
        ):  # a session that is kept has it
            return False
        if self.attached is not None and self.attached.is_away:  # its session is changed when it is back
            return False
        self._finish(b"", "the client has disconnected", now)
        return True

    def _fault(self, error: PacketError, _now: float) -> None:
        raise error

    def _stray(self, packet: Packet, _now: float) -> None:
        raise PacketError(errors.WRONG_SENDER, type(packet).__name__, self.version)

    def _settled(self, packet: PubAck, now: float) -> None:
        if self._session:
            self._check_answer(packet, Awaited.PUBACK)
            self._session.acknowledged(packet.packet_id, now)

    def _completed(self, packet: PubComp, now: float) -> None:
        if self._session:
            self._check_answer(packet, Awaited.PUBCOMP)
            self._session.completed(packet.packet_id, now)

    def _took(self, packet: PubRec, now: float) -> None:
        if self._session:
            self._check_answer(packet, Awaited.PUBREC, Awaited.PUBCOMP)
            self._session.took(packet.packet_id, packet.code, now)
        elif packet.code < FAILURE:  # what is refused is over, and no PUBREL follows
            self._send(PubRel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    def _check_answer(self, packet: PubAck | PubRec | PubComp, *fitting: Awaited) -> None:
        """End with a client that answers a message as no message with its QoS is; what is unknown may be an old one."""
        assert self._session is not None
        awaited = self._session.awaited(packet.packet_id)
        if awaited is not None and awaited not in fitting:
            found = f"{type(packet).__name__} where {awaited.name} is due"
            raise PacketError(rules.ACKNOWLEDGEMENT, found, self.version)

    def _release(self, packet: PubRel, now: float) -> None:
        if not self.received.release(packet.packet_id, now):
            raise PacketError(rules.RELEASE, f"{packet.packet_id}", self.version)

    # -- what the node says ----------------------------------------------------------------------------------

    def welcomed(self, welcome: AttachedWelcome, now: float) -> None:
        """Be attached, and open the session."""
        assert self.state is ClientState.JOINING
        assert self.attached is not None
        self.name = welcome.client_name
        self.vpn = self.attached.vpn
        self._inbox = welcome.inbox
        self._welcome = welcome
        if self._settings.capabilities.sessions and self.attached.rights.may_receive_guaranteed:
            self._session = Session(self, self.attached, self._host, self.terms.receive_max)
            if welcome.new_session and not self._session_expiry_s:
                self._session.begin(welcome.new_session, now)
            else:
                self._session.open(clean=self.terms.is_clean, expiry_s=self._session_expiry_s)
        else:
            self.opened(None, now)

    @property
    def _session_expiry_s(self) -> int:
        """For how long its session outlives the connection."""
        return min(self.terms.session_expiry_s, self._settings.session_expiry_max_s) if self._session else 0

    def opened(self, present: list[MqttSubscription] | None, now: float) -> None:
        """Be here."""
        assert self.state is ClientState.JOINING
        assert self.attached is not None
        assert self._welcome is not None
        welcome, self._welcome = self._welcome, None
        expiry_s, is_present = self._session_expiry_s, present is not None
        try:
            self._send(acceptance(self.terms, self._settings, welcome, expiry_s, is_present=is_present))
        except PacketError as error:
            self._broken(error, now)
            return
        self.state = ClientState.HERE
        aliases_max = min(self.terms.topic_alias_max, self._settings.topic_alias_max)
        self._aliases = Aliases(aliases_max, self.packet_bytes_max) if aliases_max else None
        self._publishing = Publishing(self, self.attached, self._settings)
        self._subscribing = Subscribing(
            self, self.attached, self._host, self._settings.capabilities, self._session
        )
        self._subscribing.restore(present or ())
        self._heard_at = now
        self._host.admitted(self.connection_id)
        self._host.resume(self.connection_id)

    def refused(self, error: AngariumError, now: float) -> None:
        """Be told that the node does not let it in."""
        self.attached = None
        self.end(error, now)

    def ended(self, error: AngariumError | None, now: float) -> None:
        """Be told that its session at the node is over."""
        self.attached = None
        self.end(error or error_for(SESSION_UNKNOWN), now)

    def away(self, _now: float) -> bool:
        """Be without the node for a while; false if that is not to be: a topic for responses goes with the router.

        What is held of a queue is known anew by the next connection.
        """
        if (
            self.state is not ClientState.HERE
            or self.terms.wants_inbox
            or (self._session and self._session.holds)
        ):
            return False
        assert self.attached is not None
        assert self._subscribing is not None
        if self._session:
            self._session.away()
        if filters := self._subscribing.in_force:
            self.attached.subscribe_again(filters, self._subscribed_again)
        return True

    def _subscribed_again(self, codes: Sequence[int], now: float) -> None:
        """End it if it may not have what it had; the router may know other rights."""
        if refusal := next(filter(None, codes), 0):
            self.end(error_for(refusal), now)

    def may_go_on(self, _now: float) -> None:
        """Be read again."""
        self._host.resume(self.connection_id)

    def answered(self, codes: Sequence[int], now: float) -> None:
        """Be told what became of filters."""
        assert self._subscribing is not None
        try:
            self._subscribing.answered(codes)
        except PacketError as error:
            self._broken(error, now)
        except AngariumError as error:
            self.end(error, now)
        else:
            self._host.resume(self.connection_id)

    def acknowledged(self, answers: Sequence[tuple[int, int]], now: float) -> None:
        """Answer messages with QoS 1, and hand on what is said of those with QoS 2."""
        assert self._publishing is not None
        later = [(name - QOS_2, code) for name, code in answers if name > QOS_2]
        if later:
            self.received.settled(later, now)
            answers = [one for one in answers if one[0] < QOS_2]
        if self._publishing is not None:  # or it was ended by what became of those
            self._publishing.unanswered -= len(answers)
        self.answer([Answer(PacketType.PUBACK, *one) for one in answers], now)

    def stored(self, event: Acknowledged, now: float) -> None:
        """Be told what became of messages with QoS 2 that it has published by its own producer."""
        assert self._session is not None
        self._session.stored(event, now)

    def released(self, packet: PubRel, now: float) -> None:
        """Be told that a message will not come again."""
        if self.state is ClientState.HERE:
            try:
                self._send(packet)
            except PacketError as error:
                self._broken(error, now)

    def answer(self, answers: Sequence[Answer], now: float) -> None:
        """Be answered, all in one piece; 3.1.1 has no refusals, and ends at the first one."""
        if self.state is not ClientState.HERE:
            return
        refusal = 0
        packets: list[bytes] = []
        for kind, packet_id, code in answers:
            if kind is PacketType.PUBCOMP:
                packets.append(self._completion(packet_id, code))
            elif not code or (code == NO_SUBSCRIPTION_MATCH and self.version == V3):
                packets.append(
                    stored(packet_id) if kind is PacketType.PUBACK else write(PubRec(packet_id), V3)
                )
            elif self.version == V5:
                packets.append(self._refusal(kind, packet_id, code))
            else:
                refusal = code
                break
        if packets:
            self._host.send(self.connection_id, b"".join(packets))
        if refusal:
            self.end(error_for(refusal), now)
        else:
            self._host.resume(self.connection_id)

    def _refusal(self, kind: PacketType, packet_id: int, code: int) -> bytes:
        """Write the answer to a message that is not stored; a refusal has words if there is room for them."""
        reason = fitting(reason_of(code), kind)
        packet = PubAck if kind is PacketType.PUBACK else PubRec
        words = self._reason(ERRORS[code].text) if reason >= ReasonCode.UNSPECIFIED_ERROR else NONE
        told = write(packet(packet_id, reason, words), V5)
        return told if self._takes(told) else write(packet(packet_id, reason), V5)

    def _completion(self, packet_id: int, code: int) -> bytes:
        """Write a PUBCOMP."""
        reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if code and self.version == V5 else ReasonCode.SUCCESS
        return write(PubComp(packet_id, reason), self.version)

    def changed(self, answers: Mapping[str, int], now: float) -> None:
        """Be told what became of topic filters in its session."""
        assert self._subscribing is not None
        try:
            self._subscribing.changed(answers)
        except PacketError as error:
            self._broken(error, now)
        except AngariumError as error:
            self.end(error, now)
        else:
            self._host.resume(self.connection_id)

    def spooled(self, event: Arrived, now: float) -> None:
        """Get messages of its session."""
        assert self._session is not None
        self._session.spooled(event, now)

    def indicated(self, event: Indicated, now: float) -> None:
        """Be told what happened to the flow of its session."""
        assert self._session is not None
        self._session.indicated(event, now)

    def delivered(self, rows: Sequence[Row], share: str | None, now: float) -> None:
        """Get messages that came for this client alone."""
        assert self._subscribing is not None
        subscriptions = self._subscribing.needing(share or self._inbox)
        if subscriptions:
            self._host.deliver(subscriptions, rows, now)

    def reply(self, packet: SubAck | UnsubAck, refusal_code: int) -> None:
        """Answer a packet; the reason why something in it was refused comes with it if there is room for it."""
        if refusal_code and self.version == V5:
            told = msgspec.structs.replace(packet, properties=self._reason(ERRORS[refusal_code].text))
            if self._takes(write(told, V5)):
                packet = told
        self._send(packet)

    # -- what it is told, and the end ------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        data = write(packet, self.version)
        if not self._takes(data):
            found = f"{type(packet).__name__} of {len(data)} bytes"
            raise PacketError(rules.ANSWER_SIZE, found, self.version)
        self._host.send(self.connection_id, data)

    def _takes(self, data: bytes) -> bool:
        """Tell whether a packet is not larger than the client allows [MQTT-3.1.2-24]."""
        return not self.packet_bytes_max or len(data) <= self.packet_bytes_max

    def _reason(self, text: str) -> Properties:
        """Give a reason in words, if the client wants words."""
        if not self.terms.wants_reasons:
            return NONE
        legal = text.replace("\0", "").encode(errors="replace").decode()
        return Properties(reason_string=legal[:REASON_MAX])

    def _broken(self, error: PacketError, now: float) -> None:
        """End it because of what it did [MQTT-4.13.1-1] [MQTT-4.8.0-1]."""
        self._end(error.code, str(error), self.version or error.version, now)

    def end(self, error: AngariumError, now: float) -> None:
        """End it because of what happened to it, in the node or in this process."""
        self._end(reason_of(error.code), error.describe(), self.version, now)

    def _end(self, reason: ReasonCode, text: str, version: int, now: float) -> None:
        if self.state is ClientState.GONE:
            return
        is_here = self.state is ClientState.HERE
        kind, write_last = (PacketType.DISCONNECT, farewell) if is_here else (PacketType.CONNACK, refusal)
        code = fitting(reason, kind, version)
        self._host.count_end(reason)
        last = (write_last(code, version, given) for given in (self._reason(text), NONE))
        self._finish(next(filter(self._takes, last), b""), text, now)

    def _finish(self, last: bytes, reason: str, now: float) -> None:
        self._host.finish(self.connection_id, last, reason, now)
        self._forget()

    def _forget(self) -> None:
        """Be gone."""
        kept_s = self._kept_s
        if kept_s is None and not self._session_expiry_s:
            kept_s = 0
        will_within_s = None
        if self.state is ClientState.HERE and not self._is_done:
            will_within_s = self._session_expiry_s if kept_s is None else kept_s
        self.state = ClientState.GONE
        if self._subscribing is not None:
            self._subscribing.clear()
        last = self._session.leave(kept_s) if self._session else []
        self._session = None
        if self.attached is not None:
            self.attached.leave(last, will_within_s=will_within_s)
            self.attached = None
        # They know it: with them it would be a cycle, and the process hardly ever collects those.
        self._publishing = self._subscribing = self._received = None

    # -- what others ask of it -------------------------------------------------------------------------------

    @property
    def received(self) -> Received:
        """What it publishes with QoS 2; most clients never do."""
        if self._received is None:
            assert self.attached is not None
            self._received = (
                self._session.received
                if self._session
                else Received(NoNote(), Shared(self.attached), self.answer)
            )
        return self._received

    @property
    def version(self) -> int:
        """The version that it speaks; 0 before its CONNECT."""
        return self.terms.version

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet that it takes; 0 if it takes any."""
        return self.terms.packet_bytes_max

    @property
    def is_taking_retained(self) -> bool:
        """Whether something that is retained waits for its acknowledgements."""
        return self._session is not None and self._session.is_taking_retained

    def begin_retained(self) -> None:
        """Hold back what comes of queues: what is retained is read for a subscription with QoS 1 or 2."""
        if self._session:
            self._session.begin_retained()

    def take_retained(self, subscription: MqttSubscription, rows: Sequence[Row], now: float) -> None:
        """Get what was read for that."""
        if self._session:
            self._session.take_retained(subscription, rows, now)

    def end_retained(self, now: float) -> None:
        """Hold back nothing more for that."""
        if self._session:
            self._session.end_retained(now)

    @property
    def patience_s(self) -> float:
        """How long it may take nothing while something waits for it."""
        return max(PATIENCE_LEAST_S, PATIENCE * self.terms.keep_alive_s)

    @property
    def queue_units(self) -> int:
        """What may wait for it, in work units."""
        return self.attached.rights.queue_units if self.attached else 0

    @property
    def queued(self) -> tuple[int, int]:
        """Messages and bytes that wait for it in this process."""
        return self.attached.queued if self.attached else (0, 0)

    @queued.setter
    def queued(self, queued: tuple[int, int]) -> None:
        if self.attached:
            self.attached.queued = queued

    @property
    def is_kept(self) -> bool:
        """Whether its session outlives the connection."""
        return self._session is not None and not self._session.is_temporary

    def count(self, name: str, amount: int = 1) -> None:
        """Count what happened to it, for operators."""
        if self.attached:
            self.attached.count(name, amount)

    def sent(self, data: bytes) -> bytes:
        """Give messages that leave now as the client gets them."""
        return data if self._aliases is None else self._aliases.shorten(data)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        is_here = self.state is ClientState.HERE
        assert (self.attached is not None) == (self.state in (ClientState.JOINING, ClientState.HERE))
        assert bool(self.version) or self.state in (ClientState.NEW, ClientState.GONE)
        assert self._session is None or self.attached is not None
        assert not is_here or (self.name and self._publishing and self._subscribing)
        if self._subscribing is not None:
            self._subscribing.validate()
        if self._aliases is not None:
            self._aliases.validate()


_Act: TypeAlias = "Callable[[Client, Any, float], bool | None]"
#: What each packet of a client does; false if it is to come again.
_ACTS: Final[dict[type, _Act]] = {
    Connect: Client._connect,
    Publish: Client._publish,
    PubAck: Client._settled,
    PubRec: Client._took,
    PubRel: Client._release,
    PubComp: Client._completed,
    Subscribe: Client._subscribe,
    Unsubscribe: Client._subscribe,
    PingReq: Client._ping,
    Disconnect: Client._disconnect,
    Auth: Client._authenticate,
    PacketError: Client._fault,
}
#: What may come first.
_FIRST: Final = (Client._connect, Client._fault)
