"""Opening and closing producers, and who may publish under which name.

Producers are named per Message VPN and username; the controller keeps their names in a durable registry and gives each
a number, which is never used for another. Opening one (`producer.open`)

1. asks the registry for the number; a name that should be known and is not is refused with 40019, never in silence;
2. fences the session that has it: its rounds that were not judged are dropped, and it is told 40903; but a client that
   comes back late does not throw out another one that has taken the name over, and is told 40903 itself;
3. gathers what all homes know of it, behind everything that was given to them before;
4. answers the highest sequence that is known, above which its client goes on.

What it sends again may begin anywhere: the records judge it (`memory`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from angarium import errors, wire
from angarium.errors import error_for
from router.asking.asks import refusal
from router.ground.alarms import (
    CLIENT_INGRESS_FLOWS,
    USERNAME_INGRESS_FLOWS,
    VPN_INGRESS_FLOWS,
    UsernameCounts,
)
from router.ground.ground import nothing
from router.guaranteed.permissions import profile_of
from router.sessions.producer import Memory, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.asking.asks import Asks
    from router.asking.requests import Answer, Requests
    from router.ground.ground import Ground
    from router.publishers.gathering import Gathering, Question
    from router.sessions.directory import Vpn
    from router.sessions.producer import Record
    from router.sessions.session import Session

#: Bytes of a producer's name.
NAME_BYTES_MAX: Final = 160
#: Producers that were closed, and of which it is remembered how far direct subscribers had their copies; of the oldest
#: one that is forgotten a copy may come twice.
CLOSED_MAX: Final = 100_000
#: Open producers of a username that the controller is told of; with more its full share refuses new names.
TOLD_MAX: Final = 1_000
_Handle = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]


class OpenArguments(msgspec.Struct, forbid_unknown_fields=True):
    """What `producer.open` takes."""

    #: Empty: make one up.
    name: str = ""
    #: At most 255 but for a stage.
    window: Annotated[int, msgspec.Meta(ge=1, le=wire.STAGE_WINDOW_MAX)] = wire.PRODUCER_WINDOW_MAX
    #: The client had it before.
    resume: bool = False
    #: What it publishes waits for a commit. The name is made up; a given one is to be resumed.
    stage: bool = False


class CloseArguments(msgspec.Struct, forbid_unknown_fields=True):
    """What `producer.close` takes."""

    producer: _Handle
    #: The name will not be used again.
    forget: bool = False


class Producers:
    """All producers of the node."""

    def __init__(
        self,
        ground: Ground,
        asks: Asks,
        gathering: Gathering,
        end: Callable[[Producer[Session], int], None],
        forget_rounds: Callable[[Producer[Session]], bool],
    ) -> None:
        """Begin without any; `end` tells a producer no more than why, `forget_rounds` drops those that wait."""
        self._node = ground.node
        self._asks = asks
        self._gathering = gathering
        self._end = end
        self._alarms = ground.alarms
        self._of_usernames = UsernameCounts(USERNAME_INGRESS_FLOWS, ground.alarms)
        self._random = ground.secrets
        self._forget_rounds = forget_rounds
        #: Number in the registry -> who has it; also of a session that ended, until everything is settled.
        self.by_id: dict[int, Producer[Session]] = {}
        #: (Message VPN, username) -> the numbers of those above; none is empty.
        self._owned: dict[tuple[str, str], dict[int, None]] = {}
        #: VPN number -> producers of connected clients; no zeros.
        self._vpns: dict[int, int] = {}
        #: The highest id that the controller has given.
        self._newest = 0
        #: Number -> the last sequence that was judged, of producers that were closed; the oldest first.
        self._closed: dict[int, int] = {}
        #: Number that the registry was asked to forget -> who was told it meanwhile, and asks again after that.
        self._forgetting: dict[int, list[Callable[[], None]]] = {}
        #: Session -> handle -> what homes are asked of a producer; none is empty, or of a session that is over.
        self._gathers: dict[Session, dict[int, Question]] = {}

    def register(self, requests: Requests) -> None:
        """Offer the operations to clients."""
        requests.register("producer.open", OpenArguments, self.open)
        requests.register("producer.close", CloseArguments, self.close)

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self, session: Session, arguments: OpenArguments, answer: Answer, _now: float) -> None:
        """A client wants to publish guaranteed messages.

        Raises:
            AngariumError: 40312 its profile forbids it, 50319 too many, 40018 the name is too long, or one for a stage
                that is not resumed, or the window is one of stages only.
        """
        self._check_rights(session)
        if not arguments.stage and arguments.window > wire.PRODUCER_WINDOW_MAX:
            raise errors.invalid(
                f"window is {arguments.window}, at most {wire.PRODUCER_WINDOW_MAX} is possible"
            )
        if arguments.stage and bool(arguments.name) != arguments.resume:
            raise errors.invalid("the name of a stage is made up, and then resumed")
        prefix = "" if arguments.stage else f"#{self._node}/"
        name = arguments.name or f"{prefix}{self._random.getrandbits(96):024x}"
        if len(name.encode(errors="replace")) > NAME_BYTES_MAX:
            raise errors.invalid(f"a name has at most {NAME_BYTES_MAX} bytes")
        handle = session.next_producer
        session.next_producer += 1
        window = session.kind.producer_window or arguments.window
        producer = Producer(session, handle, session.vpn.name, session.username, name, window)
        producer.is_stage = arguments.stage
        session.producers[handle] = producer
        self._count(producer, 1)
        question: dict[str, Any] = {
            "vpn": producer.vpn_name,
            "username": producer.username,
            "name": name,
            "resume": arguments.resume,
        }
        if not arguments.stage:
            # The share of its username may be used up: who is open must not give way.
            owned = self._owned.get((producer.vpn_name, producer.username), {})
            question["in_use"] = list(owned) if len(owned) <= TOLD_MAX else None
            question["newest"] = self._newest
        self._ask_registry(producer, question, answer)

    def _ask_registry(self, producer: Producer[Session], question: dict[str, Any], answer: Answer) -> None:
        self._asks.ask(
            "stage.open" if producer.is_stage else "producer.open",
            question,
            lambda ok, value, now: self._registered(producer, question, answer, value, now, ok=ok),
            producer.session,
        )

    def _check_rights(self, session: Session) -> None:
        profile = profile_of(session)
        if not profile["allow_guaranteed_send"]:
            raise error_for(errors.GUARANTEED_SEND_DENIED, f"client profile {session.profile_name}")
        limit = int(profile["max_ingress_flow_count"])
        if len(session.producers) >= limit:
            self._drop_ended(session)
        if len(session.producers) >= limit:
            self._alarms.client_is_full(CLIENT_INGRESS_FLOWS, session, limit)
            raise error_for(errors.TOO_MANY_FLOWS, f"{limit} producers of a client by its profile")
        limit = int(profile["max_ingress_flow_count_per_client_username"])
        if not self._of_usernames.has_room(session.vpn, session.username, limit):
            raise error_for(errors.TOO_MANY_FLOWS, f"{limit} producers of username {session.username}")
        limit = _producers_max(session.vpn)
        if self._vpns.get(session.vpn.id, 0) >= limit:
            self._alarms.exceeded(VPN_INGRESS_FLOWS, session.vpn, limit)
            raise error_for(errors.TOO_MANY_FLOWS, f"{limit} producers in Message VPN {session.vpn.name}")

    def _drop_ended(self, session: Session) -> None:
        """Producers that were fenced keep their handles until somebody needs the place."""
        for producer in [one for one in session.producers.values() if one.is_over]:
            self._leave(producer)

    def _registered(
        self,
        producer: Producer[Session],
        question: dict[str, Any],
        answer: Answer,
        value: Any,
        now: float,
        *,
        ok: bool,
    ) -> None:
        """The registry answered."""
        if not ok:
            self._leave(producer)
            answer.refuse(refusal(value))
            return
        self._newest = max(self._newest, int(value.get("newest", value["id"])))
        if producer.session.closed:
            answer.give(None)
            return
        number, resume = int(value["id"]), question["resume"]
        if number in self._forgetting:  # its records go, and the name gets another number
            self._forgetting[number].append(lambda: self._ask_registry(producer, question, answer))
            return
        producer.id = number
        older = self.by_id.get(number)
        if older is not None and resume and _is_of_another_client(older, producer):
            self._leave(producer)
            answer.refuse(error_for(errors.PRODUCER_FENCED, producer.name))
            return
        if older is not None:
            self._fence(older, now)
        self._enter(producer)
        if producer.is_stage and not resume:
            self._gathered(producer, answer, {}, now)  # nobody had its number before
            return
        gathers = self._gathers.setdefault(producer.session, {})
        gathers[producer.handle] = self._gathering.ask(
            producer.id, lambda records, then: self._all_told(producer, answer, records, then)
        )

    def _all_told(
        self, producer: Producer[Session], answer: Answer, records: dict[int, Record], now: float
    ) -> None:
        """All homes have told what they know."""
        gathers = self._gathers[producer.session]
        del gathers[producer.handle]
        if not gathers:
            del self._gathers[producer.session]
        self._gathered(producer, answer, records, now)

    def _gathered(
        self, producer: Producer[Session], answer: Answer, records: dict[int, Record], _now: float
    ) -> None:
        """It is known what homes have of it."""
        if producer.is_over:  # fenced while it was being opened
            self._leave(producer)
            answer.refuse(error_for(errors.PRODUCER_FENCED, producer.name))
            return
        producer.repeated_upto = self._closed.pop(producer.id, 0)
        producer.memory = Memory(producer.id, producer.window, records, producer.repeated_upto)
        producer.is_open = True
        answer.give(
            {
                "producer": producer.handle,
                "name": producer.name,
                "last_sequence": producer.memory.highest,
                "window": producer.window,
            }
        )

    # -- ends ------------------------------------------------------------------------------------------------

    def _fence(self, producer: Producer[Session], now: float) -> None:
        """Somebody else has the name now."""
        self._vacate(producer)
        self._remember(producer)
        self._forget_rounds(producer)
        producer.end()
        if producer.is_open:
            self._end(producer, errors.PRODUCER_FENCED)
        if producer.closed_by is not None:
            producer.closed_by(now)

    def _remember(self, producer: Producer[Session]) -> None:
        judged = max(producer.last, producer.repeated_upto)
        if judged and producer.id and not producer.is_stage:  # nobody gets copies of what is staged
            self._closed.pop(producer.id, None)
            self._closed[producer.id] = judged
            if len(self._closed) > CLOSED_MAX:
                del self._closed[next(iter(self._closed))]

    def break_off(self, producer: Producer[Session]) -> None:
        """A round of a producer is not taken, so no later one may be: what is sent again would be taken for stored.

        Nothing more is told to it either. Its session is over, or ends now.
        """
        self._forget_rounds(producer)
        producer.end()
        self._end(producer, 0)
        if self.by_id.get(producer.id) is producer:
            self._vacate(producer)
            self._remember(producer)

    def close(self, session: Session, arguments: CloseArguments, answer: Answer, now: float) -> None:
        """A client is done with a producer: answered when everything that was accepted is settled.

        Raises:
            InvalidRequestError: there is no such producer (40030).
        """
        producer = session.producers.get(arguments.producer)
        if producer is None or producer.closed_by is not None or not (producer.is_open or producer.is_over):
            raise error_for(errors.UNKNOWN_PRODUCER, f"handle {arguments.producer}")
        producer.closed_by = lambda then: self._close(producer, answer, then, forget=arguments.forget)
        if not producer.unacked_rows:
            producer.closed_by(now)

    def _close(self, producer: Producer[Session], answer: Answer, _now: float, *, forget: bool) -> None:
        # Or it, what closes it and its session are a cycle, and the process hardly ever collects those.
        producer.closed_by = _is_closed
        self._leave(producer)
        if self.by_id.get(producer.id) is not producer:  # it was fenced: the name is another's
            answer.give(None)
            return
        self._vacate(producer)
        if not forget or producer.is_stage:
            self._remember(producer)
            answer.give(None)
            return
        self._closed.pop(producer.id, None)
        self._forgetting[producer.id] = []
        self._asks.ask(
            "producer.forget",
            {"id": producer.id},
            lambda ok, value, _: self._forgotten(producer, answer, ok, value),
            producer.session,
        )

    def _forgotten(self, producer: Producer[Session], answer: Answer, ok: bool, value: Any) -> None:  # noqa: FBT001 - part of the answer
        """The registry has forgotten a name, so the homes may too."""
        if ok:
            self._gathering.ask(producer.id, nothing, forget=True)
            answer.give(None)
        else:
            answer.refuse(refusal(value))
        for ask_again in self._forgetting.pop(producer.id):
            ask_again()

    def end_stage(self, number: int, now: float) -> None:
        """Nothing more is taken of a stage: it was decided what becomes of it."""
        producer = self.by_id.get(number)
        if producer is not None:
            self._fence(producer, now)

    def forget(self, producer_ids: list[int]) -> None:
        """The registry has forgotten these (too old, or their username is gone), so the homes may too."""
        for producer_id in producer_ids:
            self._closed.pop(producer_id, None)
            self._gathering.ask(producer_id, nothing, forget=True)

    def idle(self, producer: Producer[Session], now: float) -> None:
        """Everything that a producer was accepted for is settled."""
        if producer.closed_by is not None:
            producer.closed_by(now)
        elif producer.session.closed and self.by_id.get(producer.id) is producer:
            self._vacate(producer)
            self._remember(producer)

    def session_ended(self, session: Session, _error: object, now: float) -> None:
        """A session is over: what it has under way goes on, what waits to be judged is dropped."""
        for question in self._gathers.pop(session, {}).values():  # or they would pile up while a home is down
            self._gathering.drop(question)
        for producer in list(session.producers.values()):
            self._leave(producer)
            if self._forget_rounds(producer):
                self.break_off(producer)
            elif producer.id and not producer.unacked_rows:
                self.idle(producer, now)

    def _enter(self, producer: Producer[Session]) -> None:
        """It has its name now."""
        self.by_id[producer.id] = producer
        self._owned.setdefault((producer.vpn_name, producer.username), {})[producer.id] = None

    def _vacate(self, producer: Producer[Session]) -> None:
        """Its name is free, or another session's."""
        del self.by_id[producer.id]
        owner = producer.vpn_name, producer.username
        del self._owned[owner][producer.id]
        if not self._owned[owner]:
            del self._owned[owner]

    def _leave(self, producer: Producer[Session]) -> None:
        """Give the place back that a producer has in its session and its Message VPN."""
        if producer.session.producers.pop(producer.handle, None) is None:
            return
        self._count(producer, -1)

    def _count(self, producer: Producer[Session], change: int) -> None:
        session, vpn = producer.session, producer.session.vpn
        count = self._vpns.get(vpn.id, 0) + change
        self._vpns[vpn.id] = count
        if not count:
            del self._vpns[vpn.id]
        self._alarms.look(VPN_INGRESS_FLOWS, vpn, count, _producers_max(vpn))
        profile, limit = vpn.profiles.get(session.profile_name), 0
        if profile is not None:
            limit = int(profile["max_ingress_flow_count_per_client_username"])
            own = int(profile["max_ingress_flow_count"])
            self._alarms.client_has(CLIENT_INGRESS_FLOWS, session, len(session.producers), own)
        self._of_usernames.change(vpn, session.username, change, limit)

    # -- what operators see ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.by_id)

    def describe(self, vpn: str | None) -> Iterator[dict[str, Any]]:
        """List producers of connected clients, of one Message VPN or all."""
        for producer in list(self.by_id.values()):
            if producer.is_open and not producer.session.closed and vpn in (None, producer.vpn_name):
                yield {
                    "vpn": producer.vpn_name,
                    "username": producer.username,
                    "name": producer.name,
                    "id": producer.id,
                    "client": producer.session.client_name,
                    "window": producer.window,
                    "last_sequence": max(producer.last, producer.memory.highest),
                    "acknowledged_sequence": producer.told,
                    "unacked_messages": producer.unacked_rows,
                    "unacked_bytes": producer.unacked_bytes,
                    "acks": producer.acks,
                    "nacks": producer.nacks,
                }

    def validate(self) -> None:
        """Check that who has a name is not over, and that places are counted."""
        for number, producer in self.by_id.items():
            assert producer.id == number
            assert number in self._owned[producer.vpn_name, producer.username]
            assert not producer.is_over
            producer.validate()
            if not producer.session.closed:
                assert producer.session.producers[producer.handle] is producer
        assert all(self._owned.values())
        assert sum(len(owned) for owned in self._owned.values()) == len(self.by_id)
        assert all(count > 0 for count in self._vpns.values())
        assert len(self._closed) <= CLOSED_MAX
        assert not self._forgetting.keys() & self.by_id.keys()
        assert all(gathers and not session.closed for session, gathers in self._gathers.items())


def _is_closed(_now: float) -> None:
    """Do nothing more: the producer is closed."""


def _is_of_another_client(older: Producer[Session], producer: Producer[Session]) -> bool:
    session = older.session
    return older.is_open and not session.closed and session.client_name != producer.session.client_name


def _producers_max(vpn: Vpn) -> int:
    return int(vpn.attributes["max_ingress_flow_count"])
