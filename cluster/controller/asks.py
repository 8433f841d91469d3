"""What processes ask of the controller: producers and endpoints of clients.

The router has judged by then what the client may. An answer means that the change is durable and in force: the router
itself has confirmed the `config_set` that came before it.

    operation            arguments                                                        answer
    producer.open        vpn, username, name, resume                                      {"id", "name"}
    producer.forget      id                                                               None
    stage.open           vpn, username, name, resume                                      {"id", "name"}
    stage.commit         vpn, username, stages, sink=None, batch=None                     {"committed", "release",
                                                                                           "drop"}
    stage.abort          vpn, username, stages                                            the same
    stage.held           stages                                                           the same
    stage.settled        release, drop                                                    None
    endpoint.create      vpn, kind, name, username, client, durable, attributes,          {"created", "id", "name",
                         ignore_exists                                                     "durable"}
    endpoint.delete      vpn, kind, name, id=None                                         None
    endpoint.subscribe   vpn, name, add=[], remove=[]                                     {"added", "removed"}: verdicts
    endpoint.set_topic   vpn, name, topic, selector                                       {"generation"}
    endpoint.expire      vpn, kind, name, id                                              None
    session.open         vpn, name, username, client, clean, expiry_s, version            {"present", "filters"}
    session.change       vpn, name, username, client, put={}, drop=[], expiry_s=None,     verdicts
                         temporary=False
    session.share        vpn, name, username, client, filter, filters, expiry_s           None
    cluster.join         wish, address                                                    what JOINED says
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from cluster.catalog.endpoints import ClientEndpoints, CreateWish
from cluster.catalog.sessions import ChangeWish, ClientSessions, OpenWish, ShareWish
from cluster.controller.switchboard.switchboard import ProcessAsker

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.catalog.registries import Registries
    from cluster.catalog.stages import Decision
    from cluster.controller.operations.joining import JoinOperations
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.effects import Asked
    from cluster.controller.switchboard.switchboard import Switchboard


#: Between two events about the share of one username.
SHARE_EVENT_S: Final = 600
#: Usernames of which it is remembered when there was an event.
SHARE_EVENTS_MAX: Final = 1_000


class ProducerWish(msgspec.Struct):
    """Of `producer.open`."""

    vpn: str
    username: str
    name: str
    resume: bool = False
    #: Ids of the producers that are open; None if there are very many.
    in_use: list[int] | None = None
    #: The highest id that the router has heard of.
    newest: int = 0


class ForgetWish(msgspec.Struct):
    """Of `producer.forget`."""

    id: int


class DeleteWish(msgspec.Struct):
    """Of `endpoint.delete`; with an id only the endpoint that has it is meant."""

    vpn: str
    kind: str
    name: str
    id: int | None = None


class SubscribeWish(msgspec.Struct):
    """Of `endpoint.subscribe`."""

    vpn: str
    name: str
    add: list[str] = []
    remove: list[str] = []


class TopicWish(msgspec.Struct):
    """Of `endpoint.set_topic`; None takes it away."""

    vpn: str
    name: str
    topic: str | None
    selector: str | None = None


class ExpireWish(msgspec.Struct):
    """Of `endpoint.expire`."""

    vpn: str
    kind: str
    name: str
    id: int


class StageWish(msgspec.Struct):
    """Of `stage.open`; `resume`: it is to be open already."""

    vpn: str
    username: str
    name: str
    resume: bool = False


class CommitWish(msgspec.Struct):
    """Of `stage.commit`; without a sink there is no batch."""

    vpn: str
    username: str
    stages: list[str]
    sink: str | None = None
    batch: int | None = None


class AbortWish(msgspec.Struct):
    """Of `stage.abort`."""

    vpn: str
    username: str
    stages: list[str]


class HeldWish(msgspec.Struct):
    """Of `stage.held`: numbers of stages that a home has."""

    stages: list[int]


class SettledWish(msgspec.Struct):
    """Of `stage.settled`: all homes have released the ones, and dropped the others."""

    release: list[int]
    drop: list[int]


class JoinWish(msgspec.Struct):
    """Of `cluster.join`: what an unauthenticated connection said in JOIN, and from where."""

    wish: bytes
    address: str


class Asks:
    """Answers what processes ask."""

    def __init__(
        self, board: Switchboard, registries: Registries, changes: Changes, joining: JoinOperations
    ) -> None:
        """Answer from these registries, and change them through `changes`."""
        self._joining = joining
        self._board = board
        self._catalog, self._producers, self._stages, _ = registries
        self._endpoints = ClientEndpoints(self._catalog)
        self._sessions = ClientSessions(self._catalog, self._endpoints)
        self._changes = changes
        #: (Message VPN, username) -> when operators were told that a share is used up, the oldest first.
        self._told_s: dict[tuple[str, str], int] = {}

    def asked(self, question: Asked) -> None:
        """Take a question; its answer is emitted now or when the change is in force."""
        identity, number, operation, given = question
        asker = ProcessAsker(identity, number)
        known = _OPERATIONS.get(operation)
        try:
            if known is None:
                detail = f"{operation!r}; there are {', '.join(_OPERATIONS)}"
                raise errors.error_for(errors.UNKNOWN_OPERATION, detail)
            kind, handler = known
            wish: Any = msgspec.convert(given, kind)
            handler(self, wish, asker)
        except msgspec.ValidationError as error:
            self._board.refuse(asker, errors.INVALID_ARGUMENT, f"{operation}: {error}")
        except errors.AngariumError as error:
            self._board.refuse(asker, error.code, error.detail)
            if error.code == errors.SHARE_EXCEEDED:
                self._tell_share(wish.vpn, wish.username, f"{operation} is refused: {error.detail}")

    def _tell_share(self, vpn: str, username: str, text: str) -> None:
        """Record that somebody has its share, now and then."""
        owner, now_s = (vpn, username), self._board.now_s()
        if now_s - self._told_s.get(owner, now_s - SHARE_EVENT_S) < SHARE_EVENT_S:
            return
        self._told_s.pop(owner, None)
        self._told_s[owner] = now_s
        if len(self._told_s) > SHARE_EVENTS_MAX:
            del self._told_s[next(iter(self._told_s))]
        self._board.record_system("warning", "SYSTEM_AD_SHARE_EXCEEDED", text)

    def _open(self, wish: ProducerWish, asker: ProcessAsker) -> None:
        key = (wish.vpn, wish.username, wish.name)
        today = self._board.today()
        number, entries = self._producers.open(
            key, resume=wish.resume, today=today, in_use=wish.in_use, newest=wish.newest
        )
        forgotten = self._producers.ids_of(entries)
        if forgotten:
            text = f"username '{wish.vpn}/{wish.username}' has its share of producers: each new one replaces an old one"
            self._tell_share(wish.vpn, wish.username, text)

        def answer() -> dict[str, Any]:
            return {"id": number, "name": wish.name, "newest": self._producers.newest}

        self._changes.make(entries, asker, "opened", answer, forgotten=forgotten)

    def _forget(self, wish: ForgetWish, asker: ProcessAsker) -> None:
        self._changes.make(self._producers.forget(wish.id), asker, "forgotten", lambda: None)

    def _open_stage(self, wish: StageWish, asker: ProcessAsker) -> None:
        number, entries = self._stages.open(
            (wish.vpn, wish.username), wish.name, resume=wish.resume, now_s=self._board.now_s()
        )

        def answer() -> dict[str, Any]:
            return {"id": number, "name": wish.name, "newest": self._producers.newest}

        self._changes.make(entries, asker, "opened", answer)

    def _commit(self, wish: CommitWish, asker: ProcessAsker) -> None:
        owner = wish.vpn, wish.username
        self._decide(
            self._stages.commit(owner, wish.sink, wish.batch, wish.stages, self._board.now_s()), asker
        )

    def _abort(self, wish: AbortWish, asker: ProcessAsker) -> None:
        self._decide(self._stages.abort((wish.vpn, wish.username), wish.stages, self._board.now_s()), asker)

    def _decide(self, decision: Decision, asker: ProcessAsker) -> None:
        release, drop = list(decision.release), list(decision.drop)
        answer = {"committed": decision.is_new, "release": release, "drop": drop}
        self._changes.make(decision.entries, asker, "decided", lambda: answer)

    def _held(self, wish: HeldWish, asker: ProcessAsker) -> None:
        self._decide(self._stages.held(wish.stages), asker)

    def _settled(self, wish: SettledWish, asker: ProcessAsker) -> None:
        entries = self._stages.settled(wish.release, wish.drop, self._board.now_s())
        self._changes.make(entries, asker, "settled", lambda: None)

    def _create(self, wish: CreateWish, asker: ProcessAsker) -> None:
        changes, created = self._endpoints.create(wish)

        def answer() -> dict[str, Any]:
            made = self._catalog.get(wish.kind, wish.vpn, wish.name)
            assert made is not None, "it was created"
            return {"created": created, "id": made["id"], "name": wish.name, "durable": made["durable"]}

        self._changes.make(changes, asker, f"created by client username {wish.username!r}", answer)

    def _delete(self, wish: DeleteWish, asker: ProcessAsker) -> None:
        changes = self._endpoints.delete(wish.vpn, wish.kind, wish.name, wish.id)
        self._changes.make(changes, asker, "deleted by a client", lambda: None)

    def _expire(self, wish: ExpireWish, asker: ProcessAsker) -> None:
        changes = self._endpoints.expire(wish.vpn, wish.kind, wish.name, wish.id)
        self._changes.make(changes, asker, "deleted after max_idle_s without a flow", lambda: None)

    def _open_session(self, wish: OpenWish, asker: ProcessAsker) -> None:
        opened = self._sessions.open(wish)
        answer = {"present": opened.present, "filters": opened.filters}
        verb = f"opened by client username {wish.username!r}"
        self._changes.make(opened.changes, asker, verb, lambda: answer)

    def _change_session(self, wish: ChangeWish, asker: ProcessAsker) -> None:
        changed = self._sessions.change(wish)
        self._changes.make(changed.changes, asker, "changed by its client", lambda: changed.verdicts)

    def _share_session(self, wish: ShareWish, asker: ProcessAsker) -> None:
        self._changes.make(self._sessions.share(wish), asker, "shared by its clients", lambda: None)

    def _subscribe(self, wish: SubscribeWish, asker: ProcessAsker) -> None:
        made = self._endpoints.subscribe(wish.vpn, wish.name, wish.add, wish.remove)
        answer = {"added": made.added, "removed": made.removed}
        self._changes.make(made.changes, asker, "subscribed by a client", lambda: answer)

    def _set_topic(self, wish: TopicWish, asker: ProcessAsker) -> None:
        changes = self._endpoints.set_topic(wish.vpn, wish.name, wish.topic, wish.selector)

        def answer() -> dict[str, Any]:
            endpoint = self._catalog.get("topic-endpoint", wish.vpn, wish.name)
            assert endpoint is not None, "it was changed"
            return {"generation": endpoint["generation"]}

        self._changes.make(changes, asker, "given another topic by a client", answer)

    def _join(self, wish: JoinWish, asker: ProcessAsker) -> None:
        self._joining.asked(wish.wish, wish.address, asker)


_OPERATIONS: Final[dict[str, tuple[type[msgspec.Struct], Callable[..., None]]]] = {
    "producer.open": (ProducerWish, Asks._open),
    "producer.forget": (ForgetWish, Asks._forget),
    "stage.open": (StageWish, Asks._open_stage),
    "stage.commit": (CommitWish, Asks._commit),
    "stage.abort": (AbortWish, Asks._abort),
    "stage.held": (HeldWish, Asks._held),
    "stage.settled": (SettledWish, Asks._settled),
    "cluster.join": (JoinWish, Asks._join),
    "endpoint.create": (CreateWish, Asks._create),
    "endpoint.delete": (DeleteWish, Asks._delete),
    "endpoint.subscribe": (SubscribeWish, Asks._subscribe),
    "endpoint.set_topic": (TopicWish, Asks._set_topic),
    "endpoint.expire": (ExpireWish, Asks._expire),
    "session.open": (OpenWish, Asks._open_session),
    "session.change": (ChangeWish, Asks._change_session),
    "session.share": (ShareWish, Asks._share_session),
}

#: Questions that may share a transaction: to judge one again does no harm. Who joins uses up a token.
SHARING: Final = frozenset(_OPERATIONS) - {"cluster.join"}
