"""Stages: what clients ask of them.

A stage is a producer whose messages stay invisible until it is committed (docs/protocol.md, Stages). `producer.open`
with `stage` opens one; this module handles

    stage.commit   sink, batch, stages     publish them, once for each batch of a sink
    stage.abort    stages                  drop them

The controller decides, in one durable transaction; then `settling` has the homes carry it out. From the decision on no
more messages of the stages are accepted: a session that has one still open gets an error. Messages that were accepted
before are ahead of the decision on their way to the homes, so they are published, or dropped, with the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from angarium import errors
from angarium.errors import error_for
from router.asking.asks import refusal
from router.guaranteed.permissions import profile_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.asking.asks import Asks
    from router.asking.requests import Answer, Requests
    from router.publishers.settling import Settling
    from router.sessions.session import Session

#: Stages that one request names: a thousand tasks, and their second tries.
STAGES_MAX: Final = 10_000
#: Characters of the text by which clients know a stage.
NAME_MAX: Final = 64
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=STAGES_MAX)]


class CommitArguments(msgspec.Struct, forbid_unknown_fields=True):
    """What `stage.commit` takes."""

    stages: _Names
    #: Who commits, as it is remembered, and the number of what it commits; both or neither.
    sink: Annotated[str, msgspec.Meta(max_length=160)] | None = None
    batch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)] | None = None


class AbortArguments(msgspec.Struct, forbid_unknown_fields=True):
    """What `stage.abort` takes."""

    stages: _Names


class Stages:
    """Requests about stages."""

    def __init__(
        self, asks: Asks, settling: Settling, requests: Requests, end: Callable[[int, float], None]
    ) -> None:
        """Offer the operations; `end` takes nothing more of the stage with a number."""
        self._asks = asks
        self._settling = settling
        self._end = end
        #: Stages that homes have and of which the controller has not said what they are, and whether it is being asked.
        self._held: dict[int, None] = {}
        self._is_asking = False
        requests.register("stage.commit", CommitArguments, self.commit)
        requests.register("stage.abort", AbortArguments, self.abort)

    def commit(self, session: Session, arguments: CommitArguments, answer: Answer, _now: float) -> None:
        """Publish what was staged; answered when every home has it.

        Raises:
            ForbiddenError: the client profile does not allow guaranteed messages (40312).
        """
        _check_rights(session)
        question: dict[str, Any] = {**_owner(session), "stages": arguments.stages}
        if arguments.sink is not None or arguments.batch is not None:
            question |= {"sink": arguments.sink, "batch": arguments.batch}
        self._asks.ask(
            "stage.commit",
            question,
            lambda ok, value, now: self._committed(answer, value, now, ok=ok),
            session,
        )

    def _committed(self, answer: Answer, value: Any, now: float, *, ok: bool) -> None:
        if not ok:
            answer.refuse(refusal(value))
            return
        committed = bool(value["committed"])
        self._decided(value, now, lambda _: answer.give({"committed": committed}))

    def abort(self, session: Session, arguments: AbortArguments, answer: Answer, _now: float) -> None:
        """Let go of stages; those that are not there, or committed, stay as they are.

        Raises:
            ForbiddenError: the client profile does not allow guaranteed messages (40312).
        """
        _check_rights(session)
        question = {**_owner(session), "stages": arguments.stages}
        self._asks.ask(
            "stage.abort",
            question,
            lambda ok, value, now: self._aborted(answer, value, now, ok=ok),
            session,
        )

    def _aborted(self, answer: Answer, value: Any, now: float, *, ok: bool) -> None:
        if not ok:
            answer.refuse(refusal(value))
            return
        self._decided(value, now, None)
        answer.give(None)

    def _decided(self, value: Any, now: float, done: Callable[[float], None] | None) -> None:
        for stage in (*value["release"], *value["drop"]):
            self._end(stage, now)
        self._settling.settle(value["release"], value["drop"], now, done)

    def held(self, stages: list[int]) -> None:
        """A home came back and has these: what the registry does not know, or has settled, must not stay there.

        That happens if its spool is older or newer than the registry: one of them is from a backup, or an end came
        between a drop and its deletions.
        """
        self._held.update(dict.fromkeys(stages))
        self.retry()

    def retry(self) -> None:
        """Ask the controller what it did not answer before."""
        if self._is_asking or not self._held:
            return
        self._is_asking = True
        stages = list(self._held)
        self._asks.ask(
            "stage.held", {"stages": stages}, lambda ok, value, now: self._sorted(stages, value, now, ok=ok)
        )

    def _sorted(self, stages: list[int], value: Any, now: float, *, ok: bool) -> None:
        self._is_asking = False
        if not ok:
            return  # the next sweep asks again
        for stage in stages:
            self._held.pop(stage, None)
        self._decided(value, now, None)

    def told(self, decided: dict[str, Any], now: float) -> None:
        """The controller tells which decisions are not settled."""
        for stage in (*decided["release"], *decided["drop"]):
            self._end(stage, now)
        self._settling.told(decided, now)


def _owner(session: Session) -> dict[str, str]:
    return {"vpn": session.vpn.name, "username": session.username}


def _check_rights(session: Session) -> None:
    if not profile_of(session)["allow_guaranteed_send"]:
        raise error_for(errors.GUARANTEED_SEND_DENIED, f"client profile {session.profile_name}")
