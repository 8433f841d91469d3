"""The operations on objects: list, show, create, update, delete; a backup, and applying one.

operation           arguments                                   answer
objects.list        kind, vpn="default" (None: all), name="*"   objects whose name matches
objects.show        kind, name, vpn="default"                   one object
objects.create      kind, name, vpn="default", attributes={}    the object
objects.update      kind, name, vpn="default", attributes,      the object
                    version=None
objects.delete      kind, name, vpn="default", version=None     None
objects.subscribe   name, vpn="default", add=[], remove=[]      the queue; of filters that clients added too
config.export                                                   [kind, vpn, name, attributes] and hashes
config.apply        objects, dry_run=False, prune=False         what was done, or would be, per object
access.check        name, verb, target, vpn="default",          {"allowed", "checks"}: whether a username may
                    guaranteed=False
clients.try         username, does, target, vpn="default"       None: that somebody tries is allowed, and written down
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from cluster.controller.access.client_rights import rights_of
from cluster.controller.access.permissions import may_have
from cluster.objects import version_of
from cluster.security import passwords
from storage.config_store import Change

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin import arguments
    from cluster.catalog.registries import Registries
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.switchboard import AdminAsker, Asker, Handlers, Switchboard
    from storage.config_store import Entry


#: Passwords of one request that become hashes: each takes a tenth of a second, and nothing else is done meanwhile.
PASSWORDS_MAX: Final = 20


class ObjectOperations:
    """What operators do with objects."""

    def __init__(
        self,
        board: Switchboard,
        registries: Registries,
        changes: Changes,
    ) -> None:
        """Answer from these registries, and change them through `changes`."""
        self._board = board
        self._catalog, self._producers, self._stages, _ = registries
        self._changes = changes
        self.operations: Handlers = {
            "objects.list": self._list,
            "objects.show": self._show,
            "objects.create": self._create,
            "objects.update": self._update,
            "objects.delete": self._delete,
            "objects.subscribe": self._subscribe,
            "config.export": self._export,
            "config.apply": self._apply,
            "access.check": self._check_access,
            "clients.try": self._try,
        }

    def _check_access(self, request: arguments.AccessArguments, asker: AdminAsker, _now: float) -> None:
        self._board.reply(asker, rights_of(self._catalog, request))

    def _try(self, request: arguments.TrialArguments, asker: AdminAsker, _now: float) -> None:
        self._catalog.show("vpn", "", request.vpn)
        self._board.reply(asker, None)

    def _list(self, request: arguments.ListArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, self._catalog.find(request.kind, request.vpn, request.name))

    def _show(self, request: arguments.ObjectArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, self._catalog.show(request.kind, request.vpn or "", request.name))

    def _create(self, request: arguments.ChangeArguments, asker: Asker, _now: float) -> None:
        where = (request.kind, request.vpn or "", request.name)
        changes = self._catalog.create(*where, request.attributes)
        self._changes.make(changes, asker, "created", lambda: self._catalog.show(*where))

    def _update(self, request: arguments.ChangeArguments, asker: Asker, _now: float) -> None:
        where = (request.kind, request.vpn or "", request.name)
        self._refuse_changed(request)
        changes = self._catalog.update(*where, request.attributes)
        self._changes.make(changes, asker, "updated", lambda: self._catalog.show(*where))

    def _delete(self, request: arguments.DeleteArguments, asker: Asker, _now: float) -> None:
        self._refuse_changed(request)
        changes = self._catalog.delete(request.kind, request.vpn or "", request.name)
        self._make(changes, asker, "deleted", lambda: None)

    def _refuse_changed(self, request: arguments.DeleteArguments) -> None:
        """Refuse to change what is not what it was when somebody looked at it.

        Raises:
            ConflictError: it is not (41201).
        """
        if request.version is None:
            return
        shown = self._catalog.show(request.kind, request.vpn or "", request.name)
        if version_of(shown) != request.version:
            raise errors.error_for(errors.CHANGED_MEANWHILE, f"{request.kind} {request.name!r}")

    def _subscribe(self, request: arguments.SubscribeArguments, asker: Asker, _now: float) -> None:
        where = ("queue", request.vpn, request.name)
        before = self._catalog.get(*where)
        if before is None:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"queue {request.name!r}")
        kept = {
            name: [text for text in before[name] if text not in request.remove]
            for name in ("subscriptions", "client_subscriptions")
        }
        known = [*before["subscriptions"], *before["client_subscriptions"]]
        missing = [text for text in request.remove if text not in known]
        if missing:
            detail = f"{missing[0]!r} of queue {request.name!r}; 'angarium queue show' lists them"
            raise errors.error_for(errors.SUBSCRIPTION_NOT_FOUND, detail)
        wanted = list(dict.fromkeys([*kept["subscriptions"], *request.add]))
        changes = self._catalog.update(*where, {"subscriptions": wanted})
        changes = _with_client_subscriptions(changes, where, before, kept["client_subscriptions"])
        self._changes.make(changes, asker, "subscribed", lambda: self._catalog.show(*where))

    def _export(self, _request: arguments.NoArguments, asker: AdminAsker, _now: float) -> None:
        self._board.reply(asker, [row for row in self._catalog.export() if may_have(asker.who, *row[:2])])

    def _apply(self, request: arguments.ApplyArguments, asker: AdminAsker, _now: float) -> None:
        declared = [list(entry) for entry in request.objects]
        _check_passwords(declared)
        undeclared = self._catalog.undeclared(declared) if request.prune else []
        who = asker.who
        # Who prunes from afar comes in again afterwards.
        own = ("operator", "", who.name) if who.door != "local" else None
        gone = [key for key in undeclared if key != own and may_have(who, *key[:2])]
        applied = self._catalog.apply(declared, gone)
        changes = [] if request.dry_run else applied.changes
        self._make(changes, asker, "applied", lambda: applied.report)

    def _make(self, changes: list[Entry], asker: Asker, verb: str, answer: Callable[[], Any]) -> None:
        """Bring changes into force; whoever gets a name next must not go on with the sequences of the one that went."""
        records: list[Entry] = []
        for gone in [one for one in changes if isinstance(one, Change) and one.attributes is None]:
            if gone.kind in ("vpn", "username"):
                owner = (gone.name, None) if gone.kind == "vpn" else (gone.vpn, gone.name)
                records += self._producers.forget_all(*owner)
                records += self._stages.forget_all(owner, self._board.now_s())
        forgotten = self._producers.ids_of(records)
        self._changes.make([*changes, *records], asker, verb, answer, forgotten=forgotten)


def _check_passwords(declared: list[list[Any]]) -> None:
    """Refuse more passwords at once than can be made hashes of before the controller is taken for hung.

    Raises:
        InvalidRequestError: so many are no hashes (40018).
    """
    given = [attributes.get("password") for *_, attributes in declared]
    plain = sum(1 for one in given if isinstance(one, str) and one and not passwords.is_hash(one))
    if plain > PASSWORDS_MAX:
        others = "and any number of hashes, which 'angarium config apply' makes of those in a file"
        raise errors.invalid(f"{plain} passwords at once: {PASSWORDS_MAX} are the most, {others}")


def _with_client_subscriptions(
    changes: list[Any], where: tuple[str, str, str], before: dict[str, Any], kept: list[str]
) -> list[Any]:
    """Give the change of a queue with what is left of the filters that clients added."""
    after = changes[0].attributes if changes else before
    left = [text for text in after["client_subscriptions"] if text in kept]
    if left == after["client_subscriptions"]:
        return changes
    return [Change(*where, {**after, "client_subscriptions": left})]
