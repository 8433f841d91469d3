"""The controller's decisions: the admin API, the objects, what router and workers are told, the reports.

A pure state machine: admin requests, questions, answers and events of processes, news of the supervisor and the clock
go in; effects come out: commit these changes, send this request, reply that, record this event.
`cluster/controller/server.py` carries them out in order, so a change is durable before the router hears of it and
before its author gets an answer. Which objects may exist is decided by `cluster.catalog`.

The admin API: `Admin.call(operation, **arguments)`. Most operations are in `cluster/controller/operations`: those on
objects are listed in `objects.py` there, those on endpoints and messages in `endpoints.py`, those on the spool in
`spool.py` and `aside.py`, those on stages and sinks in `stages.py`, those on links in `links.py`, those on bridges in
`bridges.py`, those on the cluster in `mesh.py`, who may join it in `joining.py`, who operators are in `operators.py`;
what processes ask is in `asks.py`, and another number of workers in `scaling.py`.
The others:

    operation           arguments                                   answer
    status                                                          what `angarium status --json` prints
    workers                                                         a row per worker, with its counters
    stats               role=None                                   raw counters of each process
    clients.list        vpn=None                                    connected clients
    clients.show        name, vpn="default"                         one of them
    clients.disconnect  name, vpn="default"                         None
    subscriptions.list  client=None, vpn=None                       subscriptions of connected clients
    events              since=None (id or ISO time), limit=1000,    events, oldest first
                        vpn=None, event="*"
    events.follow       the same; since None: the newest            {"events", "upto", "lost"}: where to go on
    audit               since=None (number or ISO time), who="",     what operators did, oldest first
                        limit=1000
    health                                                          whether the node is alive, started, ready, and why
                                                                    not
    config.show                                                     the configuration in force
    keys.reload                                                     the certificates were read again: those that end
    log_level           level, role=None, index=None                the processes that changed
    down                                                            None; the node then stops in order
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from cluster.admin.operations import OPERATIONS
from cluster.bridge.role import BRIDGE
from cluster.catalog import passwordless
from cluster.controller import report
from cluster.controller.access import permissions
from cluster.controller.access.audit_log import DONE, Deed
from cluster.controller.access.callers import LOCAL, Callers, Claim, Who
from cluster.controller.asks import Asks
from cluster.controller.blames import Blames
from cluster.controller.health.checks import Health, examine
from cluster.controller.health.metrics import metrics
from cluster.controller.issuers.keys import IssuerKeys
from cluster.controller.mesh.cluster_view import ClusterView
from cluster.controller.operations.aside import AsideOperations
from cluster.controller.operations.bridges import BridgeOperations, WebhookOperations
from cluster.controller.operations.endpoints import EndpointOperations
from cluster.controller.operations.joining import JoinOperations
from cluster.controller.operations.links import LinkOperations
from cluster.controller.operations.mesh import MeshOperations
from cluster.controller.operations.objects import ObjectOperations
from cluster.controller.operations.operators import OperatorOperations
from cluster.controller.operations.spool import SpoolOperations
from cluster.controller.operations.stages import StageOperations
from cluster.controller.remote.operators import Operators
from cluster.controller.report import Samples
from cluster.controller.standby import StandbyOperations
from cluster.controller.switchboard.changes import Changes
from cluster.controller.switchboard.effects import (
    Asked,
    Effect,
    ReloadCertificate,
    SetLogLevel,
    StopNode,
)
from cluster.controller.switchboard.processes import ObjectProcesses
from cluster.controller.switchboard.switchboard import (
    PENDING_MAX,
    ROUTER,
    AdminAsker,
    Asker,
    Handlers,
    Peer,
    Place,
    Switchboard,
    answer_of_router,
)
from cluster.controller.workers.balancing import Balancing
from cluster.controller.workers.scaling import Scaling
from cluster.data.data_dir import COPIES_FOLDER
from cluster.http.role import HTTP
from cluster.link.role import LINK
from cluster.management.role import MANAGEMENT
from cluster.mqtt.role import MQTT
from cluster.roles.role import Indices
from cluster.roster.table import CONTROLLER, ROLES, WORKER
from cluster.webhook.role import WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.admin import arguments
    from cluster.admin.answers import HostStatus
    from cluster.catalog.registries import Registries
    from cluster.controller.access.audit_log import Room
    from cluster.controller.mesh.cluster_view import Identity
    from cluster.controller.switchboard.events import Event
    from cluster.standby.promotion import Promotion

#: Rates are differences of totals over this time.
SAMPLE_INTERVAL_S: Final = 1.0
#: While the spool is read; who waits for the node to be ready waits so much longer at most.
START_SAMPLE_INTERVAL_S: Final = 0.2
#: Producers age by days, so an hour is often enough to look at them.
AGE_INTERVAL_S: Final = 3_600.0
_STATS_OF_ROUTER: Final = {ROUTER: (ROUTER, "stats", None)}


class Controller:
    """All that the controller knows. Methods that take `now` return the effects to carry out, in order."""

    #: Whether the config store or the file of events found no room last.
    is_disk_full = False
    #: Number of the last event of the supervisor that was taken.
    supervisor_events = 0
    #: How often the supervisor was told by a signal to have certificates read again, as far as that was done.
    _reloads = 0
    #: Whether an operation has asked for the end of the node.
    _is_stopping = False
    #: Judges who administers the node from other hosts.
    operators: Operators
    #: Keys for logins by token.
    issuers: IssuerKeys

    def __init__(
        self,
        registries: Registries,
        board: Switchboard,
        identity: Identity,
        shown_config: dict[str, Any],
        copies: Path = Path(COPIES_FOLDER),
        owner: str = "",
    ) -> None:
        """Begin with what is stored; no process is known yet.

        Args:
            registries: what the config store holds.
            board: with the events of earlier runs; nobody has used it.
            identity: of this node.
            shown_config: what `config.show` answers, without secrets: the configuration in force.
            copies: directory for copies that are to be fetched from another host.
            owner: the user of the operating system that the node is of.
        """
        self._board, self._registries = board, registries
        self._catalog = catalog = registries.catalog
        certificates = shown_config.get("admin", {}).get("operators", ())
        self.callers = Callers(catalog, certificates, owner)
        self.operators = Operators()
        self.issuers, self._shown_config = IssuerKeys(board), shown_config
        self._changes = Changes(board, registries)
        self.joining = JoinOperations(board, catalog, self._changes, self.callers, identity.node)
        self._asks = Asks(board, registries, self._changes, self.joining)
        self._spool = SpoolOperations(board, identity.node_id, copies)
        view = ClusterView(identity)
        #: By role; those of other roles are not the business of objects.
        self._processes = {
            role.name: ObjectProcesses(board, catalog, role, identity.node)
            for role in ROLES.values()
            if role.indices is Indices.OBJECTS
        }
        self._samples = Samples(board, self._processes)
        self._links = LinkOperations(board, catalog, identity.node, view, self._processes[LINK.name])
        self._mesh = MeshOperations(board, catalog, self._links, view)
        self._bridges = BridgeOperations(board, catalog, self._processes[BRIDGE.name])
        self._webhooks = WebhookOperations(board, catalog, self._processes[WEBHOOK.name])
        self._standby = StandbyOperations(board)
        self._balancing = Balancing(board, catalog, self._changes)
        self._scaling = Scaling(board, catalog, self._changes, self._balancing, self._standby.is_there)
        self._blames = Blames(board, catalog, self._changes)
        #: Number of a `ReloadCertificate` -> who waits for it.
        self._reloading: dict[int, AdminAsker] = {}
        #: pid -> what it uses, as measured last.
        self._usage: dict[int, dict[str, Any]] = {}
        self._sampler, self._sample_due = report.Sampler(), 0.0
        #: What the router told last; None if it did not answer.
        self._router_stats: dict[str, Any] | None = None
        #: The newest description of the node that `tick` saw, and when it was new; None before the first tick.
        self._seen_node: dict[str, Any] | None = None
        self._heard: float | None = None
        #: When the producers are looked at next; None before the first tick, which is too early.
        self._age_due: float | None = None
        self._handlers = self._all_handlers()
        unlike = self._handlers.keys() ^ OPERATIONS.keys()
        assert not unlike, f"operations are done by a rule and a handler: {unlike}"

    def _all_handlers(self) -> Handlers:
        """Give who does each operation of the admin API."""
        board, (catalog, producers, stages, _) = self._board, self._registries
        return {
            "status": self._status,
            "workers": self._workers,
            **self._balancing.operations,
            **self._scaling.operations,
            "stats": self._stats,
            "gateways.list": self._list_gateways,
            "gateways.show": self._show_gateway,
            **ObjectOperations(board, self._registries, self._changes).operations,
            **StageOperations(board, stages, self._changes).operations,
            **EndpointOperations(board, catalog, producers).operations,
            **self._spool.operations,
            **AsideOperations(board, catalog, self._changes).operations,
            **self._links.operations,
            **self._mesh.operations,
            **self.joining.operations,
            **self._bridges.operations,
            **self._webhooks.operations,
            **self._standby.operations,
            **OperatorOperations(board, self.callers).operations,
            **self.issuers.operations,
            "clients.list": board.forwarding("clients"),
            "clients.show": board.forwarding("client"),
            "clients.disconnect": board.forwarding("disconnect"),
            "subscriptions.list": board.forwarding("subscriptions"),
            "events": self._find_events,
            "events.follow": self._follow_events,
            "audit": self._find_deeds,
            "health": self._show_health,
            "config.show": self._show_config,
            "keys.reload": self._reload_keys,
            "log_level": self._set_log_level,
            "down": self._stop_node,
        }

    # -- events of the node ----------------------------------------------------------------------------------

    def hello(self, identity: bytes, place: Place, incarnation: int, pid: int, now: float) -> list[Effect]:
        """A process says that it is there; a new router gets the whole configuration."""
        if self._board.hello(place, Peer(identity, incarnation, pid)) and place == ROUTER:
            self._sample_due = now
            self.issuers.tell(now)  # before the objects, or who comes with a token would be refused
            self._changes.push_everything(now)
        self._board.ask_held(place)
        return self._board.taken()

    @property
    def knows_node(self) -> bool:
        """Whether the supervisor has told of the node since this process began."""
        return bool(self._board.node)

    @property
    def knows_router(self) -> bool:
        """Tell whether a router said hello."""
        return ROUTER in self._board.peers

    def default_is_closed(self) -> list[Effect]:
        """`default` was disabled while the node started."""
        self._board.record_system("warning", passwordless.CLOSED_EVENT, passwordless.CLOSED_TEXT)
        return self._board.taken()

    @property
    def passwordless(self) -> list[dict[str, str]]:
        """The usernames under which clients of this host need no password."""
        return passwordless.usernames(self._catalog)

    def asked(self, questions: Sequence[Asked]) -> list[Effect]:
        """Processes ask something; what it changes is one transaction."""
        self._changes.share(questions, self._asks.asked)
        return self._board.taken()

    def answered(self, number: int, value: Any) -> list[Effect]:
        """A process answered a request."""
        self._board.answered(number, value)
        return self._board.taken()

    def refused(self, number: int, code: int, detail: str) -> list[Effect]:
        """A process refused a request."""
        self._board.refused(number, code, detail)
        return self._board.taken()

    def unanswered(self, number: int) -> list[Effect]:
        """A request could not be sent: its process is gone."""
        self._board.unanswered(number)
        return self._board.taken()

    def reloaded(self, number: int, fault: str, ending: list[str], now: float) -> list[Effect]:
        """The certificate of the admin API was read again, or has a fault; that of clients is next.

        Args:
            number: of the `ReloadCertificate`.
            fault: of the certificate of the admin API; empty: none.
            ending: a sentence for each certificate of the node that has ended or soon will.
            now: the time.
        """
        asker = self._reloading.pop(number, None)
        if fault:
            text = f"the certificate of the admin API stays, for another one cannot be used: {fault}"
            self._board.record_system("error", "SYSTEM_CERTIFICATE_NOT_RELOADED", text)
            if asker is not None:
                self._board.refuse(asker, errors.INVALID_CONFIGURATION, fault)
                asker = None
        others = sorted(
            place for place in self._board.peers if place[0] in (MQTT.name, HTTP.name, MANAGEMENT.name)
        )
        sections = [one for one in self._shown_config.values() if isinstance(one, dict)]
        has_own = self._shown_config.get("router", {}).get("tls_cert_file")
        # A router that has no certificate to read would refuse.
        asked = (
            others if not has_own and any(one.get("tls_cert_file") for one in sections) else [ROUTER, *others]
        )

        def finish(answers: dict[Place, Any]) -> list[str]:
            if ROUTER in asked:
                answer_of_router(answers)
            return ending

        self._board.collect(asker, now, {place: (place, "tls_reload", None) for place in asked}, finish)
        return self._board.taken()

    def event(self, event: Event) -> list[Effect]:
        """A process tells an event."""
        self._board.record(event)
        if newest := event.get("newest_endpoint", 0):
            # Lanes are kept aside that the store, an older one, may not know: no new endpoint gets their id.
            self._changes.make(self._catalog.skip_ids(newest), None, "", lambda: None)
        return self._board.taken()

    def node_news(self, node: dict[str, Any], now: float) -> list[Effect]:
        """The supervisor describes the node, with the events that were not confirmed yet."""
        self._board.node = node
        for number, event in node["events"]:
            if number > self.supervisor_events:
                self.supervisor_events = number
                self._blames.died(event, now) if "note" in event else self._board.record(event)
        for processes in self._processes.values():
            processes.node_news()
        if node.get("reloads", 0) > self._reloads:
            self._reloads = node["reloads"]
            self._board.emit(ReloadCertificate())
        return self._board.taken()

    def measured(self, usage: dict[int, dict[str, Any]]) -> None:
        """Take what each pid uses: rss_bytes, cpu_percent, uptime_s."""
        self._usage = usage

    def pids(self) -> list[int]:
        """Give the pids of all processes that live, to be measured."""
        return [row["pid"] for row in self._board.node.get("processes", ()) if row["pid"]]

    def tick(self, now: float) -> list[Effect]:
        """End what waited long enough, take a sample of the router's totals, and forget idle producers."""
        self._board.expire(now)
        self._board.tell_left_out(now)
        self._board.tell_repeats()
        for processes in self._processes.values():
            processes.tick(now)
        self._mesh.tick(now)
        if self._heard is None or self._board.node is not self._seen_node:
            self._heard, self._seen_node = now, self._board.node
        if now >= self._sample_due:
            self._sample_due = now + SAMPLE_INTERVAL_S
            self._sample(now)
            self._samples.sample(now)
        if self._age_due is None:
            self._age_due = now + AGE_INTERVAL_S
        elif now >= self._age_due:
            self._age_due = now + AGE_INTERVAL_S
            self._age_producers(now)
        self._changes.tick(now)
        self._balancing.tick(now)
        return self._board.taken()

    def health(self, now: float) -> Health:
        """Tell how the node does, from what was told within the last seconds; nobody is asked."""
        stats = self._router_stats
        links = self._links.states((stats or {}).get("links", []))
        silent_s = 0.0 if self._heard is None else now - self._heard
        return examine(self._board.node, stats and stats.get("spool", {}), links, silent_s)

    def metrics(self, now: float) -> str:
        """Give the metrics of the node as the page of the health endpoint."""
        cluster, pair = self._mesh.view.metrics(now), self._standby.metrics()
        health, samples = self.health(now), self._samples.newest
        full = report.full_disks(self._board.node, self._router_stats, is_disk_full=self.is_disk_full)
        written = self._board.audit_log.written
        node = {**self._board.node, "disk_full": bool(full), "audit_entries": written}
        return metrics(health, node, self._usage, self._router_stats, cluster, samples, pair)

    def pair(self, status: HostStatus | None, promotion: Promotion | None = None) -> list[Effect]:
        """Take what the keeper of this host says, None: it has none; and a promotion that is not written down."""
        self._standby.told(status, promotion)
        return self._board.taken()

    # -- the store -------------------------------------------------------------------------------------------

    def committed(self, number: int, now: float) -> list[Effect]:
        """The changes of a `Commit` are durable."""
        self._changes.committed(number, now)
        return self._scaling.note(self._board.taken())

    def not_committed(self, number: int, code: int, detail: str) -> list[Effect]:
        """The changes of a `Commit` were refused by the store and nothing changed."""
        self._changes.not_committed(number, code, detail)
        return self._board.taken()

    def audit_log_has(self, room: Room) -> list[Effect]:
        """The file of the audit log has so much room now."""
        self._board.audit_log.room = room
        return [] if room == "plenty" else self.disk_full("the audit log takes nothing but what makes room")

    def stopped(self) -> list[Effect]:
        """The node was stopped in order, without an operation: by its owner, or by the system."""
        self._board.tell_repeats(is_end=True)
        if not self._is_stopping:
            who = self.callers.who(LOCAL)
            self._board.write_down(AdminAsker(b"", 0, who, Deed(who, "down", {})), DONE)
        return self._board.taken()

    def disk_full(self, detail: str) -> list[Effect]:
        """A file of ours took something not, for want of room; operators hear of the first time."""
        if not self.is_disk_full:
            self.is_disk_full = True
            text = f"nothing new is configured, and events are not kept over a restart: {detail}"
            self._board.record_system("error", "SYSTEM_DISK_FULL", text)
        return self._board.taken()

    def disk_has_room(self) -> list[Effect]:
        """There is room again."""
        self.is_disk_full = False
        self._board.record_system("info", "SYSTEM_DISK_FULL_CLEAR", "the disk takes changes and events again")
        return self._board.taken()

    def copied(self, number: int, now: float) -> list[Effect]:
        """The copy of a `CopyStore` is made."""
        self._spool.copied(number, now)
        return self._board.taken()

    def checked(self, number: int, faults: list[str], now: float) -> list[Effect]:
        """The records of the config store were read for a `CheckStore`."""
        self._spool.checked(number, faults, now)
        return self._board.taken()

    def not_copied(self, number: int, detail: str) -> list[Effect]:
        """The copy of a `CopyStore` failed."""
        self._spool.not_copied(number, detail)
        return self._board.taken()

    # -- the admin API ---------------------------------------------------------------------------------------

    def admin(
        self, identity: bytes, number: int, operation: str, given: Any, now: float, claim: Claim = LOCAL
    ) -> list[Effect]:
        """Do an admin operation for who claims to ask; its reply is among these effects or later ones."""
        asker = self._asker(
            identity, number, Who(claim.name, "", "", claim.door, claim.address), operation, given
        )
        try:
            asker = self._asker(identity, number, self.callers.who(claim), operation, given)
            self._admin(asker, operation, given, now)
        except msgspec.ValidationError as error:
            self._board.refuse(asker, errors.INVALID_ARGUMENT, f"{operation}: {error}")
        except errors.AngariumError as error:
            self._board.refuse(asker, error.code, error.detail)
        return self._board.taken()

    @staticmethod
    def _asker(identity: bytes, number: int, who: Who, operation: str, given: Any) -> AdminAsker:
        return AdminAsker(identity, number, who, Deed(who, operation, given))

    def _admin(self, asker: AdminAsker, operation: str, given: Any, now: float) -> None:
        handler = self._handlers.get(operation)
        if handler is None:
            detail = f"{operation!r}; there are {', '.join(self._handlers)}"
            raise errors.error_for(errors.UNKNOWN_OPERATION, detail)
        if len(self._board.pending) >= PENDING_MAX:
            detail = f"{PENDING_MAX} requests wait for answers of the processes"
            raise errors.error_for(errors.CONTROL_RATE_EXCEEDED, detail)
        wanted = msgspec.convert(given, OPERATIONS[operation].arguments)
        request = permissions.judge(asker.who, operation, wanted)
        if asker.deed is not None:
            self._board.audit_log.check_room(asker.deed)
        handler(request, asker, now)

    def _status(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        def finish(answers: dict[Place, Any]) -> dict[str, Any]:
            shown = report.status(
                self._board.node,
                self._usage,
                answers.get(ROUTER),
                self._samples.of(WORKER),
                self._sampler.rates,
                self._mesh.issues,
                is_disk_full=self.is_disk_full,
            )
            return {**shown, "passwordless": self.passwordless}

        self._board.collect(asker, now, _STATS_OF_ROUTER, finish)

    def _workers(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        every = report.processes(self._board.node, self._usage)
        rows = {row["index"]: row for row in every if row["role"] == WORKER.name}
        asked = {index: ((WORKER.name, index), "stats", None) for index in rows}

        def finish(answers: dict[int, Any]) -> list[dict[str, Any]]:
            return [{**(answers.get(index) or {}), **row} for index, row in rows.items()]

        self._board.collect(asker, now, asked, finish)

    def _list_gateways(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        rows = report.gateways(self._board.node, self._usage)

        def finish(answers: dict[Place, Any]) -> list[dict[str, Any]]:
            return [{**row, **(answers.get(place) or {})} for place, row in rows.items()]

        self._board.collect_view(asker, now, {place: (place, "stats", None) for place in rows}, finish)

    def _show_gateway(self, request: arguments.ProcessArguments, asker: Asker, now: float) -> None:
        rows = report.gateways(self._board.node, self._usage)
        place = next((place for place, row in rows.items() if row["name"] == request.name), None)
        if place is None:
            there = ", ".join(row["name"] for row in rows.values()) or "none"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"gateway {request.name}; there are: {there}")

        def finish(answers: dict[Place, Any]) -> dict[str, Any]:
            return {**rows[place], **(answers.get(place) or {})}

        self._board.collect_view(asker, now, {place: (place, "stats", None)}, finish)

    def _stats(self, request: arguments.StatsArguments, asker: Asker, now: float) -> None:
        places = [place for place in sorted(self._board.peers) if request.role in (None, place[0])]
        own = self._own_stats()

        def finish(answers: dict[Place, Any]) -> dict[str, Any]:
            workers = [answers.get(place) for place in places if place[0] == WORKER.name]
            return {"router": answers.get(ROUTER), "workers": workers, "controller": own}

        self._board.collect(asker, now, {place: (place, "stats", None) for place in places}, finish)

    def _find_events(self, request: arguments.EventArguments, asker: Asker, _now: float) -> None:
        found = self._board.events.find(request.since, request.limit, request.vpn, request.event)
        self._board.reply(asker, found)

    def _follow_events(self, request: arguments.EventArguments, asker: Asker, _now: float) -> None:
        found = self._board.events.follow(request.since, request.limit, request.vpn, request.event)
        self._board.reply(asker, found._asdict())

    def _find_deeds(self, request: arguments.AuditArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, self._board.audit_log.find(request.since, request.who, request.limit))

    def _show_health(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        self._board.reply(asker, self.health(now).answer())

    def _show_config(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, self._shown_config)

    def _reload_keys(self, _request: arguments.NoArguments, asker: AdminAsker, _now: float) -> None:
        number = self._board.new_number()
        self._reloading[number] = asker
        self._board.emit(ReloadCertificate(number))

    def _set_log_level(self, request: arguments.LogLevelArguments, asker: Asker, now: float) -> None:
        board = self._board
        chosen = [
            place
            for place in sorted(board.peers)
            if request.role in (None, place[0]) and request.index in (None, place[1])
        ]
        own = []
        if request.role in (None, CONTROLLER.name):
            board.emit(SetLogLevel(request.level))
            own = ["controller.0"]
        asked = {place: (place, "log_level", request.level) for place in chosen}
        board.collect(asker, now, asked, lambda answers: own + [f"{role}.{at}" for role, at in answers])

    def _stop_node(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._is_stopping = True
        self._board.reply(asker, None)
        self._board.emit(StopNode())

    # -- of our own ------------------------------------------------------------------------------------------

    def _sample(self, now: float) -> None:
        peer = self._board.peers.get(ROUTER)
        incarnation = peer.incarnation if peer else 0

        def finish(answers: dict[Place, Any]) -> None:
            self._router_stats = answers.get(ROUTER)
            if not (self._router_stats or {}).get("spool", {}).get("recovered"):
                self._sample_due = min(self._sample_due, now + START_SAMPLE_INTERVAL_S)
            if ROUTER in answers:
                self._sampler.sample(now, incarnation, answers[ROUTER])
            else:
                self._sampler.forget()

        self._board.collect(None, now, _STATS_OF_ROUTER, finish)

    def _age_producers(self, now: float) -> None:
        """Forget producers that nobody opened for long; without the router nobody knows which are open."""
        board, (_, producers, stages, _) = self._board, self._registries

        def finish(answers: dict[Place, Any]) -> None:
            if ROUTER not in answers:
                return
            opened = {row["id"] for row in answers[ROUTER]}
            entries = producers.age(board.today(), opened)
            forgotten = producers.ids_of(entries)
            entries += stages.age(board.now_s(), opened)
            aged = stages.dropped_by(entries)
            if aged:
                text = f"{len(aged)} stages that nobody committed are dropped, {aged[0]!r} first"
                board.record_system("warning", "SYSTEM_AD_STAGE_AGED", text)
            self._changes.make(entries, None, "aged", lambda: None, forgotten=forgotten)

        board.collect(None, now, {ROUTER: (ROUTER, "producers", {"vpn": None})}, finish)

    def _own_stats(self) -> dict[str, Any]:
        board, (catalog, producers, stages, deletions) = self._board, self._registries
        return {
            "objects": len(catalog),
            "producers": len(producers),
            "stages": len(stages),
            "deletions": len(deletions),
            "sinks": stages.sinks,
            "pending": len(board.pending),
            "worker_deaths_at_work": self._blames.deaths_at_work,
            "put_aside": self._blames.put_aside,
            "topology_issues": self._mesh.issues,
            "joins_refused": self.joining.refused,
            "operators_refused": self.operators.refused_total,
            **self.issuers.stats(),
            "peers": [f"{role}.{index}" for role, index in sorted(board.peers)],
        }

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        self._registries.validate()
        self._changes.validate()
        self._spool.validate()
        self._mesh.validate()
        self._board.validate()
        self._board.audit_log.validate()
