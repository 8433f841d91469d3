"""The table of what there is over HTTP: a method and a path lead to an operation of the admin API.

A path is compared as it was sent, piece by piece, and each piece is decoded on its own. So the name `a/b` is `a%2Fb`,
and `..`, `//` and the like are nothing but names: no path means another one. Browsers take the names `.` and `..` for
steps, however they are encoded, and send another path; for them these are `%3F.` and `%3F..`; no object has a `?` in
its name.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from angarium import errors
from cluster.management.api import pages
from cluster.objects import ENDPOINT_KINDS, KINDS, check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.objects.kinds import ObjectKind

ROOT: Final = ("api", "v1")
#: Operations that compare the ETag of If-Match.
COMPARING: Final = ("objects.update", "objects.delete")
#: Operations beside lists whose answers are the same for everybody who gets one, and asked for again and again.
LOOKED_AT: Final = ("status", "health", "cluster.status", "standby.status")
#: Jobs as they are named in a path: 0-12,1-3 is job 12 of worker 0, and job 3 of worker 1.
JOBS_PATTERN: Final = "^[0-9]+-[0-9]+(,[0-9]+-[0-9]+)*$"
#: Digits of a number in a path, or behind the question mark: what fits 64 bits has fewer.
DIGITS_MAX: Final = 20
#: Of the values behind a question mark.
QUERY_MAX: Final = 50
#: Pieces of a path as browsers can send them, decoded -> the names that they are.
_DOTS: Final = {"?.": ".", "?..": ".."}


class Target(NamedTuple):
    """What a request is about."""

    #: Pieces of the path, decoded.
    path: tuple[str, ...]
    query: dict[str, list[str]]


def target_of(raw: str) -> Target:
    """Take the target of a request apart: /api/v1/vpns/default/queues/a%2Fb?limit=50.

    Raises:
        InvalidRequestError: it is none, or is not UTF-8 (40018).
    """
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        raise errors.invalid(f"{raw[:100]!r} is no path")
    try:
        decoded = [unquote_to_bytes(piece).decode() for piece in path[1:].split("/")]
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=QUERY_MAX,
        )
    except ValueError as error:
        raise errors.invalid(f"the target of the request cannot be read: {error}") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return Target(tuple(_DOTS.get(piece, piece) for piece in decoded), values)


def piece_of(name: str) -> str:
    """Give a name as a piece of a path that a browser can send."""
    return quote(f"?{name}" if f"?{name}" in _DOTS else name, safe="")


class Shape(enum.Enum):
    """What an answer looks like."""

    #: What the operation answers.
    VALUE = "value"
    #: A page of it.
    ROWS = "rows"
    #: An object, with its ETag.
    OBJECT = "object"
    #: The same, of one that is new: 201, and where it is.
    MADE = "made"
    #: Jobs that have begun: 202, and where they are.
    JOBS = "jobs"
    #: 204.
    NOTHING = "nothing"


class Body(enum.Enum):
    """What a request brings."""

    NONE = "none"
    #: Arguments of the operation.
    ARGUMENTS = "arguments"
    #: Attributes of an object.
    ATTRIBUTES = "attributes"
    #: The same, and its name.
    OBJECT = "object"


class Route(NamedTuple):
    """What one method does on one resource."""

    method: str
    #: Below /api/v1; pieces in braces are arguments.
    path: str
    operation: str
    summary: str
    shape: Shape = Shape.VALUE
    body: Body = Body.NONE
    #: Arguments that are the same for every request.
    fixed: Mapping[str, Any] = {}
    #: Arguments behind the question mark, with their types.
    query: Mapping[str, type] = {}
    #: Whether it is a stream of events for who accepts one.
    streams: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether who says so gets what was made for others a moment ago: lists, and what all consoles look at."""
        return self.shape is Shape.ROWS or self.operation in LOOKED_AT


class Found(NamedTuple):
    """What there is at a path."""

    #: By method.
    routes: dict[str, Route]
    #: The pieces in braces, in the order of the path.
    values: tuple[str, ...]


PLURALS: Final = {kind: f"{kind}s" for kind in KINDS}
#: Lists of what is in a Message VPN, beside objects: the last piece of the path, the operation, what it lists.
_LISTS: Final = (
    ("clients", "clients.list", "connected clients"),
    ("subscriptions", "subscriptions.list", "subscriptions of connected clients"),
    ("flows", "flows.list", "flows of clients that are bound to endpoints"),
    ("producers", "producers.list", "producers"),
    ("stages", "stages.list", "stages that are not committed"),
    ("sinks", "sinks.list", "sinks"),
)
#: Kinds whose lists say how each object does, and the operation that gives them so.
_WITH_STATE: Final = {kind: f"{PLURALS[kind]}.list" for kind in ("link", "bridge", "webhook")}
#: Entries of the audit log that pages are made of: as many as one answer has.
_ENTRIES: Final = {"limit": 1_000}
_MOVED: Final = {"copy": "Copy", "move": "Move", "redrive": "Move back where they came from"}


def _of_kind(kind: ObjectKind) -> Iterator[Route]:
    """Give what can be done with objects of a kind."""
    is_endpoint, plural = kind.name in ENDPOINT_KINDS, PLURALS[kind.name]
    listing = _WITH_STATE.get(kind.name, "endpoints.list" if is_endpoint else "objects.list")
    base = f"/vpns/{{vpn}}/{plural}" if kind.in_vpn else f"/{plural}"
    anywhere: dict[str, Any] = {"kind": kind.name, "vpn": None}
    fixed = {"kind": kind.name} if kind.in_vpn else anywhere
    listed, listed_anywhere = fixed, anywhere
    if kind.name in _WITH_STATE:  # what is listed says the kind itself
        listed, listed_anywhere = {}, {"vpn": None} if kind.in_vpn else {}
    named = f"{base}/{{name}}"
    one = f"the {kind.name}"
    yield Route("GET", base, listing, f"List {plural}", Shape.ROWS, fixed=listed, query={"name": str})
    if kind.in_vpn:
        everywhere = f"List {plural} of all Message VPNs"
        yield Route(
            "GET", f"/{plural}", listing, everywhere, Shape.ROWS, fixed=listed_anywhere, query={"name": str}
        )
    yield Route("POST", base, "objects.create", f"Make a {kind.name}", Shape.MADE, Body.OBJECT, fixed)
    yield Route("GET", named, "objects.show", f"Show {one}", Shape.OBJECT, fixed=fixed)
    yield Route("PATCH", named, "objects.update", f"Change {one}", Shape.OBJECT, Body.ATTRIBUTES, fixed)
    yield Route("DELETE", named, "objects.delete", f"Delete {one}", Shape.NOTHING, fixed=fixed)
    if is_endpoint:
        yield from _of_endpoints(kind.name, named)


def _of_endpoints(kind: str, named: str) -> Iterator[Route]:
    fixed = {"kind": kind}
    yield Route("GET", f"{named}/status", "endpoints.show", f"Show what the {kind} holds", fixed=fixed)
    published = "Count who published its newest messages"
    yield Route("GET", f"{named}/publishers", "endpoints.publishers", published, Shape.ROWS, fixed=fixed)
    yield Route(
        "POST", f"{named}/purge", "endpoints.purge", f"Delete all messages of the {kind}", fixed=fixed
    )
    release = f"End the lease of the reader group that has the {kind}"
    yield Route("POST", f"{named}/release", "endpoints.release", release, fixed=fixed)
    for verb, does in _MOVED.items():
        summary = f"{does} messages of the {kind}"
        yield Route(
            "POST", f"{named}/{verb}", f"endpoints.{verb}", summary, Shape.JOBS, Body.ARGUMENTS, fixed
        )
    listed = {"after": int, "limit": int, "partition": int, "selector": str}
    messages = f"{named}/messages"
    yield Route("GET", messages, "messages.list", "List messages", fixed=fixed, query=listed)
    deleting = ("Delete messages by their positions", Shape.VALUE, Body.ARGUMENTS, fixed)
    yield Route("POST", f"{messages}/delete", "messages.delete", *deleting)
    shown = f"{messages}/{{position}}"
    yield Route("GET", shown, "messages.show", "Show a message", fixed=fixed, query={"partition": int})


def _table() -> Iterator[Route]:
    for kind in KINDS.values():
        yield from _of_kind(kind)
    queue = "/vpns/{vpn}/queues/{name}/subscriptions"
    yield Route("POST", queue, "objects.subscribe", "Add and remove subscriptions", body=Body.ARGUMENTS)
    for piece, operation, what in _LISTS:
        query: dict[str, type] = {"client": str} if piece == "subscriptions" else {}
        yield Route("GET", f"/vpns/{{vpn}}/{piece}", operation, f"List {what}", Shape.ROWS, query=query)
        everywhere = f"List {what} of all Message VPNs"
        yield Route("GET", f"/{piece}", operation, everywhere, Shape.ROWS, fixed={"vpn": None}, query=query)
    client = "/vpns/{vpn}/clients/{name}"
    yield Route("GET", client, "clients.show", "Show a client")
    yield Route("DELETE", client, "clients.disconnect", "Disconnect a client", Shape.NOTHING)
    yield Route("GET", "/vpns/{vpn}/bridges/{name}/status", "bridges.show", "Show how a bridge does")
    yield Route("GET", "/vpns/{vpn}/webhooks/{name}/status", "webhooks.show", "Show how a webhook does")
    yield Route("GET", "/links/{name}/status", "links.show", "Show how a link does")
    yield Route("GET", "/status", "status", "Show the node")
    yield Route("GET", "/health", "health", "Show whether the node is alive, started and ready")
    yield Route("GET", "/workers", "workers", "List workers", Shape.ROWS)
    yield Route("PUT", "/workers", "workers.scale", "Have another number of workers", body=Body.ARGUMENTS)
    yield Route("GET", "/workers/balance", "workers.balance.show", "Show which queues are being moved")
    yield Route("POST", "/workers/balance", "workers.balance", "Move queues by load", body=Body.ARGUMENTS)
    yield Route("DELETE", "/workers/balance", "workers.balance.stop", "Move no more queues", Shape.NOTHING)
    yield Route("GET", "/standby", "standby.status", "Show how the hosts of the node do")
    yield Route(
        "POST", "/standby/switch", "standby.switch", "Hand the node over to its standby", Shape.NOTHING
    )
    yield Route("GET", "/gateways", "gateways.list", "List gateways", Shape.ROWS)
    yield Route("GET", "/gateways/{name}", "gateways.show", "Show a gateway")
    yield Route("GET", "/cluster", "cluster.status", "Show the cluster")
    yield Route("GET", "/cluster/tokens", "cluster.token.list", "List join tokens", Shape.ROWS)
    yield Route("POST", "/cluster/tokens", "cluster.token.create", "Make a join token", body=Body.ARGUMENTS)
    yield Route(
        "DELETE", "/cluster/tokens/{id}", "cluster.token.delete", "Delete a join token", Shape.NOTHING
    )
    yield Route("GET", "/config", "config.show", "Show the configuration in force")
    yield Route("GET", "/config/objects", "config.export", "Give every object, as a backup")
    yield Route(
        "POST", "/config/objects", "config.apply", "Make and change many objects", body=Body.ARGUMENTS
    )
    query = {"since": str, "limit": int, "vpn": str, "event": str}
    listed = "List events, the oldest first"
    yield Route("GET", "/events", "events", listed, query=query, streams=True)
    found = {"since": str, "who": str}
    listed = "List entries of the audit log, the oldest first"
    yield Route("GET", "/audit", "audit", listed, Shape.ROWS, fixed=_ENTRIES, query=found)
    yield Route("GET", "/jobs/{jobs}", "jobs.show", "Show how far jobs are", streams=True)
    yield Route("GET", "/spool", "spool.show", "Show the spool")
    yield Route("POST", "/spool/verify", "spool.verify", "Read everything in the spool")
    yield Route("GET", "/me", "operators.me", "Show who asks")


ROUTES: Final = tuple(_table())


def _pattern(path: str) -> tuple[str, ...]:
    """Give the pieces of a path of the table; each argument is an empty one."""
    return tuple("" if piece.startswith("{") else piece for piece in path[1:].split("/"))


def _by_pattern() -> dict[tuple[str, ...], dict[str, Route]]:
    found: dict[tuple[str, ...], dict[str, Route]] = {}
    for route in ROUTES:
        found.setdefault(_pattern(route.path), {})[route.method] = route
    return found


_BY_PATTERN: Final = _by_pattern()


def find(path: Sequence[str]) -> Found | None:
    """Give what there is at the pieces of a path, None if there is nothing."""
    for pattern, routes in _BY_PATTERN.items():
        if len(pattern) == len(path) and all(
            want in ("", piece) for want, piece in zip(pattern, path, strict=True)
        ):
            values = tuple(piece for want, piece in zip(pattern, path, strict=True) if not want)
            return Found(routes, values) if all(values) else None
    return None


def arguments_of(
    route: Route, values: Sequence[str], query: Mapping[str, Sequence[str]], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Give the arguments of the operation: of the path, behind the question mark, and of the body.

    Raises:
        InvalidRequestError: something is not there, there twice, or does not fit (40018).
    """
    names = re.findall(r"\{(\w+)\}", route.path)
    found = {
        name: _typed(name, value, _PATH_TYPES.get(name, str))
        for name, value in zip(names, values, strict=True)
    }
    found |= route.fixed
    allowed = {*route.query, *(pages.NAMES if route.shape is Shape.ROWS else ())}
    if unknown := [name for name in query if name not in allowed]:
        known = ", ".join(sorted(allowed)) or "none"
        raise errors.invalid(f"{unknown[0][:50]!r} behind the question mark: there are {known}")
    for name, kind in route.query.items():
        if name in query:
            found[name] = _typed(name, pages.single(name, query[name]), kind)
    return found | _of_body(route.body, body, found)


def _of_body(kind: Body, body: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    if kind is Body.ATTRIBUTES:
        check_types(found["kind"], body)
        return {"attributes": dict(body)}
    if kind is Body.OBJECT:
        attributes = dict(body)
        name = attributes.pop("name", None)
        if not isinstance(name, str):
            raise errors.invalid("the object has no name", 'give one: {"name": "orders", ...}')
        check_types(found["kind"], attributes)
        return {"name": name, "attributes": attributes}
    if kind is Body.NONE and body:
        raise errors.invalid("nothing is expected in the body")
    if twice := [name for name in body if name in found]:
        raise errors.invalid(f"{twice[0]!r} is in the path: leave it out of the body")
    return dict(body)


def _jobs(text: str) -> list[list[int]]:
    """Give jobs as they are named in a path."""
    if not re.fullmatch(JOBS_PATTERN, text):
        raise ValueError(text)
    return [[_integer(number) for number in one.split("-")] for one in text.split(",")]


def _integer(text: str) -> int:
    """Give a number as programs write it; `int` takes blanks and digits of all scripts too."""
    if not re.fullmatch(r"-?[0-9]+", text) or len(text) > DIGITS_MAX:
        raise ValueError(text)
    return int(text)


def jobs_path(jobs: Sequence[Sequence[int]]) -> str:
    """Give where jobs are."""
    return "/api/v1/jobs/" + ",".join(f"{worker}-{number}" for worker, number in jobs)


_PATH_TYPES: Final[dict[str, Callable[[str], Any]]] = {"position": _integer, "jobs": _jobs}


def _typed(name: str, text: str, kind: Callable[[str], Any]) -> Any:
    # The id of an event is a number, a time is a text.
    is_number = kind is int or (name == "since" and text.isascii() and text.isdigit())
    try:
        return _integer(text) if is_number else kind(text)
    except ValueError:
        raise errors.invalid(f"{name} = {text[:50]!r} is none") from None
