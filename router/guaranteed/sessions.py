"""The sessions of clients that are attached to a gateway: the operations session.* of REQUEST.

A session that outlives its connection is a durable queue of its client, one that does not is a temporary queue, made
with the first filter that needs one. Nobody else names, sees or consumes it. The client's right is that of receiving
guaranteed messages; filters are judged like its own subscriptions. The controller keeps what a session holds
(`cluster.catalog.sessions`) and writes only what changes.

    session.open     clean, expiry_s, version            {name, present, temporary, filters}
    session.change   put, drop, expiry_s, temporary      [nil | [code, detail], ...], one for each that was put
    session.close                                        nil
    session.note     share                               what was kept with session.keep, empty if nothing was; of a
                                                         queue that is shared [that, held]
    session.keep     note, done, share, held             nil: the note is on disk, and the messages done are gone; of a
                                                         queue that is shared what is refused of those held
    session.share    filter, filters, expiry_s           {name}

A filter that clients share has a queue of its own, from which each of them takes what it can (`share`). A session that
is kept has a note there, too, and holds messages, which nobody else gets while it is there (`Holders`).

The client binds a flow to the queue as soon as it is open: the session ends `expiry_s` after the last one, by
`max_idle_s`. What it is in the middle of is a note in the lane of the queue, which nobody else reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.frames.homes import NOTE_BYTES_MAX, NOTE_DONE_MAX, POSITION_MAX, KeepNote, ReadNote
from router.guaranteed.endpoints import QUEUE, Endpoint
from router.guaranteed.filter_checks import FilterChecks
from router.guaranteed.holders import holder_of
from router.guaranteed.permissions import Level, check_filter, check_shared, demand, demand_receive
from router.sessions.session import FILTERS_PER_FRAME, session_queue, share_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.frames.homes import LeaseVerb
    from router.asking.requests import Answer
    from router.asking.work import Work
    from router.guaranteed.charged_asks import ChargedAsks
    from router.guaranteed.endpoints import Endpoints
    from router.guaranteed.holders import AskLane, Holders
    from router.guaranteed.temporaries import Temporaries
    from router.sessions.session import Session

#: Filters of a queue that one filter of another protocol comes to.
MEANINGS_MAX: Final = 4
_Text = Annotated[str, Meta(max_length=600)]
#: In a queue.
_Positions = Annotated[list[Annotated[int, Meta(ge=1, le=POSITION_MAX)]], Meta(max_length=NOTE_DONE_MAX)]
_Seconds = Annotated[int, Meta(ge=0, lt=1 << 32)]
#: Filters of the queue, subscription options, subscription identifier or 0: the last two are the gateway's business.
_Subscribed = tuple[
    Annotated[list[_Text], Meta(max_length=MEANINGS_MAX)],
    Annotated[int, Meta(ge=0, le=255)],
    Annotated[int, Meta(ge=0, lt=1 << 28)],
]


class OpenArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.open; one that expires after 0 s ends with its connection."""

    clean: bool
    expiry_s: _Seconds
    #: Of the client's protocol.
    version: Annotated[int, Meta(ge=0, le=255)] = 0


class ChangeArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.change."""

    put: Annotated[dict[_Text, _Subscribed], Meta(max_length=FILTERS_PER_FRAME)] = {}
    drop: Annotated[list[_Text], Meta(max_length=FILTERS_PER_FRAME)] = []
    expiry_s: Annotated[int, Meta(ge=1, lt=1 << 32)] | None = None
    #: What session.open said: the queue is made if it is not there.
    temporary: bool = False


class CloseArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.close."""


class NoteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.note."""

    #: A queue that is shared; empty: its own.
    share: _Text = ""


class KeepArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.keep."""

    note: Annotated[bytes, Meta(max_length=NOTE_BYTES_MAX)]
    done: _Positions = []
    #: A queue that is shared, and what is held of it; empty: its own.
    share: _Text = ""
    held: _Positions = []


class ShareArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of session.share: a filter of the client's protocol, and what it comes to."""

    filter: _Text
    filters: Annotated[list[_Text], Meta(min_length=1, max_length=MEANINGS_MAX)]
    #: For how long the session of this client outlives its connection.
    expiry_s: _Seconds


class KeptSessions:
    """Opens, changes and closes sessions for clients of gateways."""

    def __init__(
        self,
        endpoints: Endpoints,
        asks: ChargedAsks,
        begin_work: Callable[[Work], None],
        ask_lane: AskLane,
        holders: Holders,
        temporaries: Temporaries,
    ) -> None:
        self._endpoints = endpoints
        #: Asks the home of a lane.
        self._ask_lane = ask_lane
        #: Is told of members that join.
        self._holders = holders
        self._asks = asks
        self._begin_work = begin_work
        #: Is told of sessions that their clients have ended.
        self._temporaries = temporaries

    def open(self, session: Session, wish: OpenArguments, answer: Answer, _now: float) -> None:
        """Go on with the session of a client, or begin a new one.

        Raises:
            AngariumError: it is attached to no gateway (40002), may not receive (40313); 50325 no memory is left.
        """
        endpoint = self._find(session)
        name = session_queue(session.client_name)

        def opened(value: Any) -> None:
            is_temporary = not (value["present"] or wish.expiry_s)
            answer.give({"name": name, "temporary": is_temporary, **value})

        if endpoint is None and not wish.expiry_s:
            opened({"present": False, "filters": {}})
            return
        size = self._endpoints.would_cost((), 1) if endpoint is None else 0
        # What its client has ended is over, though the controller may not have deleted it, and still will.
        is_over = endpoint is not None and self._temporaries.is_ended(endpoint)
        arguments = {**msgspec.structs.asdict(wish), "clean": wish.clean or is_over}
        self._ask("session.open", session, arguments, answer, opened, size)

    def change(self, session: Session, wish: ChangeArguments, answer: Answer, now: float) -> None:
        """Put and drop filters of a session, and change its time.

        Raises:
            AngariumError: what `open` raises; there is none (40404), or it is not his (40315); 42902 that was too much.
        """
        session.charge(len(wish.put) + len(wish.drop), "filters", now)
        self._check(session, wish)
        refused: dict[str, list[Any]] = {}

        def judge(text: str) -> None:
            try:
                check_filter(session, QUEUE, text, exceptions=False)
            except AngariumError as error:
                refused[text] = [error.code, error.detail]

        def then() -> None:
            self._change(session, wish, self._check(session, wish), refused, answer)

        texts = list(dict.fromkeys(text for one in wish.put.values() for text in one[0]))
        if texts:
            self._begin_work(FilterChecks(answer, texts, judge, then))
        else:  # no turn is waited for: who leaves with another expiry is gone before that
            then()

    def _check(self, session: Session, wish: ChangeArguments) -> Endpoint | None:
        """Give the queue that is to be changed, None if it is to be made."""
        endpoint = self._find(session)
        if endpoint is not None:
            demand(session, endpoint, Level.CONSUME, "changing")
        elif not wish.temporary:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"queue {session_queue(session.client_name)}")
        return endpoint

    def _change(
        self,
        session: Session,
        wish: ChangeArguments,
        endpoint: Endpoint | None,
        refused: dict[str, list[Any]],
        answer: Answer,
    ) -> None:
        """Ask for what was not refused; the answer names the verdicts of the controller too."""
        verdicts = {text: _first(refused, one[0]) for text, one in wish.put.items()}
        put = {text: wish.put[text] for text, verdict in verdicts.items() if verdict is None}
        if not (put or wish.drop or wish.expiry_s):
            answer.give(list(verdicts.values()))
            return

        def changed(value: Any) -> None:
            verdicts.update(zip(put, value, strict=True))
            answer.give(list(verdicts.values()))

        arguments = {"put": put, "drop": wish.drop, "expiry_s": wish.expiry_s, "temporary": endpoint is None}
        texts = [text for one in put.values() for text in one[0]]
        size = self._endpoints.would_cost(texts, 1 if endpoint is None else 0)
        self._ask("session.change", session, arguments, answer, changed, size)

    def close(self, session: Session, _wish: CloseArguments, answer: Answer, now: float) -> None:
        """End the session of a client with what it holds.

        Raises:
            AngariumError: what `open` raises; it is that of another username (40315).
        """
        endpoint = self._find(session)
        if endpoint is None:
            answer.give(None)
            return
        demand(session, endpoint, Level.CONSUME, "ending")
        self._temporaries.ended(endpoint, now)
        arguments = {"kind": QUEUE, "id": endpoint.id}
        self._ask("endpoint.delete", session, arguments, answer, answer.give)

    def note(self, session: Session, wish: NoteArguments, answer: Answer, now: float) -> None:
        """Give what is kept beside the messages of a session.

        Raises:
            AngariumError: what `keep` raises.
        """
        endpoint, holder = self._lane_of(session, wish.share)
        self._ask_home(endpoint, ReadNote(holder), answer, now)

    def keep(self, session: Session, wish: KeepArguments, answer: Answer, now: float) -> None:
        """Keep something beside the messages of a session.

        Raises:
            AngariumError: what `open` raises; there is none (40404), or it is not his (40315).
        """
        endpoint, holder = self._lane_of(session, wish.share)
        self._ask_home(endpoint, KeepNote(wish.note, wish.done, holder, wish.held), answer, now)

    def _lane_of(self, session: Session, share: str) -> tuple[Endpoint, str]:
        """Give the queue in whose lane a note of a session is, and under which name if the queue is shared."""
        endpoint = self._find(session)
        if endpoint is None:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"queue {session_queue(session.client_name)}")
        demand(session, endpoint, Level.CONSUME, "keeping notes")
        if not share:
            return endpoint, ""
        shared = self._endpoints.find(session.vpn.name, QUEUE, share)
        holder = "" if shared is None else holder_of(self._endpoints, session, shared)
        if shared is None or not holder:
            raise error_for(errors.UNKNOWN_ENDPOINT, f"shared queue {share}")
        return shared, holder

    def _ask_home(self, endpoint: Endpoint, verb: LeaseVerb, answer: Answer, now: float) -> None:
        def done(value: Any, error: AngariumError | None, _at: float) -> None:
            if error is None:
                answer.give(value)
            else:
                answer.refuse(error)

        self._ask_lane(endpoint, endpoint.lanes[0], verb, done, now)

    def share(self, session: Session, wish: ShareArguments, answer: Answer, now: float) -> None:
        """Have the queue that those share who subscribe to a filter; the client binds to it, as others do.

        Raises:
            AngariumError: what `open` raises, and the filter may not be (40005, 40006, 40303 to 40305, 40311).
        """
        self._demand(session)
        session.charge(len(wish.filters), "filters", now)
        patterns = [check_shared(session, text) for text in wish.filters]
        name = share_queue(wish.filter)
        is_new = self._endpoints.find(session.vpn.name, QUEUE, name) is None
        arguments = {"name": name, "filter": wish.filter, "filters": patterns, "expiry_s": wish.expiry_s}
        size = self._endpoints.would_cost(patterns, 1) if is_new else 0

        def shared(_value: Any) -> None:
            endpoint = self._endpoints.find(session.vpn.name, QUEUE, name)
            if endpoint is not None:
                self._holders.joined(session, endpoint, now)
            answer.give({"name": name})

        self._ask("session.share", session, arguments, answer, shared, size)

    def _find(self, session: Session) -> Endpoint | None:
        """Give the queue of the session of a client.

        Raises:
            AngariumError: what `_demand` raises.
        """
        self._demand(session)
        return self._endpoints.find(session.vpn.name, QUEUE, session_queue(session.client_name))

    def _demand(self, session: Session) -> None:
        """Refuse who may have no session.

        Raises:
            AngariumError: it is attached to no gateway (40002), or may not receive guaranteed messages (40313).
        """
        if session.carrier is None:
            raise error_for(errors.UNKNOWN_OPERATION, "sessions are for clients of gateways")
        demand_receive(session)

    def _ask(
        self,
        operation: str,
        session: Session,
        arguments: dict[str, Any],
        answer: Answer,
        then: Callable[[Any], None],
        size: int = 0,
    ) -> None:
        """Ask the controller about the session of the client."""
        whose = {
            "vpn": session.vpn.name,
            "name": session_queue(session.client_name),
            "username": session.username,
            "client": session.client_name,
        }
        self._asks.ask(operation, {**whose, **arguments}, answer, then, size)


def _first(refused: dict[str, list[Any]], texts: Sequence[str]) -> list[Any] | None:
    """Give the verdict on the first one of these that was refused."""
    return next((refused[text] for text in texts if text in refused), None)
