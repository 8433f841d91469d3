"""A Lease of Kubernetes as the outside store: what it says, until when, and what a request makes of it. Pure.

The standing is JSON in an annotation, with a revision of its own that a renewal leaves alone. The whole object changes
at once, by its `resourceVersion`, so that is the compare-and-swap.

**The lease ends by the clock of who watches.** `renewTime` is for people: clocks of hosts differ. A watcher counts from
when it first saw this state of the object, which was after the holder sent it; if nothing changes for the duration that
stands in the object, the lease is over for this watcher. If the holder renewed meanwhile, the `resourceVersion` is
another one, and what was decided is not carried out. The price: who has just begun to watch waits for a whole lease.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cluster.standby.pair.outside import Read, Renew, Resign, Seen, Swap, Take
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import WrittenStanding, line_of, read_holder, text_of, written

if TYPE_CHECKING:
    from cluster.standby.pair.outside import Holder, Request, Standing

API_VERSION: Final = "coordination.k8s.io/v1"
#: Not of a domain: it is nobody else's business.
ANNOTATION: Final = "angarium-standing"

#: A Lease, as it travels.
LeaseObject = dict[str, Any]


class _InAnnotation(WrittenStanding, frozen=True, kw_only=True):
    """A standing, the request that wrote it, and how often it was changed."""

    revision: int


class Found(NamedTuple):
    """What a Lease says to a watcher."""

    seen: Seen
    #: The request that wrote the standing.
    change: str


class Watch:
    """What one host has seen of one Lease, and since when by its own clock."""

    def __init__(self, lease_s: int) -> None:
        """See nothing yet; `lease_s` is that of a Lease that does not say it."""
        self._lease_s = lease_s
        self._state: tuple[object, object] | None = None
        self._since = 0.0

    def look(self, found: LeaseObject | None, now: float) -> Found:
        """Give what an object says, which arrived now; None: there is none.

        Raises:
            NoAnswerError: it cannot be read.
        """
        if found is None:
            self._state = None
            return Found(Seen(0, None, None), "")
        metadata, spec = found.get("metadata") or {}, found.get("spec") or {}
        state = (metadata.get("uid"), metadata.get("resourceVersion"))
        if state != self._state:
            self._state, self._since = state, now
        kept = _kept(found)
        standing = None if kept is None else kept.standing
        line = str(spec.get("holderIdentity") or "")
        is_over = not line or now - self._since >= _duration(spec, self._lease_s)
        revision = 0 if kept is None else kept.revision
        seen = Seen(revision, standing, None if is_over else read_holder(line))
        return Found(seen, "" if kept is None else kept.change)


def changed(
    found: LeaseObject | None, name: str, request: Request, change: str, me: Holder, lease_s: int
) -> LeaseObject | None:
    """Give what a request that may be carried out makes of a Lease; None: of one that only reads."""
    given = copy.deepcopy(found) or {
        "apiVersion": API_VERSION,
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {},
    }
    match request:
        case Read():
            return None
        case Take(_, standing):
            spec = _spec(given)
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _now()
            _renew(spec, me, lease_s)
            _annotate(given, standing, change)
        case Renew():
            _renew(_spec(given), me, lease_s)
        case Swap(_, standing):
            _annotate(given, standing, change)
        case Resign():
            _spec(given).pop("holderIdentity", None)
    return given


def is_possible(request: Request, seen: Seen, me: Holder) -> bool:
    """Tell whether a request may be carried out upon what is there."""
    match request:
        case Read():
            return True
        case Take(as_seen, _):
            return as_seen.revision == seen.revision and as_seen.holder == seen.holder
        case Swap(revision, _):
            return seen.holder == me and revision == seen.revision
        case Renew() | Resign():
            return seen.holder == me


def _duration(spec: dict[str, Any], otherwise_s: int) -> float:
    """Give that of the holder: what it was promised, whatever this host is configured to."""
    duration_s = spec.get("leaseDurationSeconds")
    return duration_s if isinstance(duration_s, int) and duration_s > 0 else otherwise_s


def _kept(found: LeaseObject) -> _InAnnotation | None:
    text = ((found.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_InAnnotation)
    except (msgspec.DecodeError, TypeError) as error:
        raise NoAnswerError(f"annotation {ANNOTATION} of the Lease cannot be read: {error}") from None


def _spec(given: LeaseObject) -> dict[str, Any]:
    spec: dict[str, Any] = given.get("spec") or {}
    given["spec"] = spec
    return spec


def _renew(spec: dict[str, Any], me: Holder, lease_s: int) -> None:
    spec["holderIdentity"] = line_of(me)
    spec["leaseDurationSeconds"] = lease_s
    spec["renewTime"] = _now()


def _annotate(given: LeaseObject, standing: Standing, change: str) -> None:
    kept = _kept(given)
    revision = 1 if kept is None else kept.revision + 1
    value = _InAnnotation(**msgspec.structs.asdict(written(standing, change)), revision=revision)
    metadata = given["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: text_of(value)}


def _now() -> str:
    """Give the time for people, as the API server takes it: six digits of microseconds and a Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
