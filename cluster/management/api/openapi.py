"""The description of the API for tools: OpenAPI 3.1, at /api/v1/openapi.json.

It is made of the tables that the server itself goes by (`routes.ROUTES`, `cluster.admin.operations`, the kinds of
objects), so a route that there is, is in it, and a type is what is checked. A test asks a node for all of it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import __version__, errors
from angarium_server.http import sse
from angarium_server.http.bodies import JSON, MSGPACK
from angarium_server.http.problems import CONTENT_TYPE, RETRY_AFTER_S, Problem, problem_of
from cluster.admin.operations import OPERATIONS
from cluster.management.access.browsers import SAID_WITH_CHANGES, LoginArguments, ShownSession
from cluster.management.access.ways import Offer
from cluster.management.api import object_metrics, pages
from cluster.management.api.declared import DeclaredObjects, DeclaredText
from cluster.management.api.routes import COMPARING, JOBS_PATTERN, ROUTES, Body, Shape
from cluster.management.api.trials import PublishTrial, SubscribeTrial
from cluster.objects import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.management.api.routes import Route
    from cluster.objects import ObjectKind

Schema = dict[str, Any]

ROOT: Final = "/api/v1"
#: Status -> a code that has it, as an example.
_ALWAYS: Final = {
    400: errors.INVALID_ARGUMENT,
    401: errors.UNAUTHORIZED,
    403: errors.OPERATOR_DENIED,
    408: errors.TIMEOUT,
    421: errors.MISDIRECTED_REQUEST,
    429: errors.CONNECT_RATE_EXCEEDED,
    500: errors.INTERNAL,
    503: errors.CONTROLLER_UNAVAILABLE,
}
_NAMING: Final = {404: errors.OBJECT_NOT_FOUND}
_WITH_BODY: Final = {413: errors.CONTENT_TOO_LARGE, 415: errors.UNSUPPORTED_MEDIA_TYPE}
_CHANGING: Final = {409: errors.OBJECT_EXISTS}
_SELECTING: Final = {406: errors.INVALID_SELECTOR}
_COMPARED: Final = {412: errors.CHANGED_MEANWHILE}
#: Reads of what this node may not have, although its path exists.
_CONFLICTING_READS: Final = ("standby.status",)
_PROBLEMS: Final = {**_ALWAYS, **_NAMING, **_WITH_BODY, **_CHANGING, **_SELECTING, **_COMPARED}

_TEXT: Final[Schema] = {"type": "string"}
_ETAG: Final[Schema] = {"type": "string", "pattern": '^"[!#-~]+"$'}
#: What a list takes behind the question mark, beside the arguments of its operation.
_PAGING: Final[dict[str, tuple[Schema, str]]] = {
    "limit": (
        {"type": "integer", "minimum": 1, "maximum": pages.LIMIT_MAX, "default": pages.LIMIT_DEFAULT},
        "So many rows.",
    ),
    "after": (_TEXT, "The page behind another one; the header Link of each has the path of the next."),
    "sort": (_TEXT, "By this column; with a - before it the largest first."),
    "filter": (
        {
            "type": "array",
            "items": {"type": "string", "pattern": pages.FILTER_PATTERN},
            "maxItems": pages.FILTERS_MAX,
        },
        "Rows with such a value alone: COLUMN=VALUE, with * and ?, or !=, <, <=, >, >= between them.",
    ),
    "fields": (_TEXT, "These columns alone, with commas between them."),
    "name": (_TEXT, "Rows with such a name, with * and ?."),
}
_PREFER: Final[Schema] = {
    "name": "Prefer",
    "in": "header",
    "description": "wait=SECONDS: how long the answer may take, 600 at most; without it 10.",
    "schema": _TEXT,
    "example": "wait=60",
}
_CACHE_CONTROL: Final[Schema] = {
    "name": "Cache-Control",
    "in": "header",
    "description": "max-age=SECONDS: an answer that was made for somebody else will do, if it is no older than so.",
    "schema": _TEXT,
    "example": "max-age=10",
}
#: By name: what each of them says of an answer.
_HEADERS: Final[dict[str, tuple[Schema, str]]] = {
    "ETag": (_ETAG, "Changes with each change of the object."),
    "Location": (_TEXT, "The path of what was made or begun."),
    "Link": (_TEXT, 'The path of the next page: <PATH>; rel="next".'),
    "Total-Count": ({"type": "integer"}, "Rows on all pages."),
    "Age": ({"type": "integer"}, "Seconds since it was made, for who said Cache-Control."),
    "Retry-After": ({"type": "integer"}, "Come again after so many seconds."),
    "WWW-Authenticate": (_TEXT, "How to log in."),
}
_SHAPE_HEADERS: Final = {
    Shape.OBJECT: ("ETag",),
    Shape.MADE: ("ETag", "Location"),
    Shape.JOBS: ("Location",),
    Shape.ROWS: ("Total-Count", "Link"),
}
_STATUS: Final = {Shape.MADE: 201, Shape.JOBS: 202, Shape.NOTHING: 204}


@cache
def document() -> bytes:
    """Give the document, as JSON."""
    return msgspec.json.encode(_Document().made())


class _Document:
    """The document while it is made."""

    def __init__(self) -> None:
        # Nobody who comes by HTTP may ask for those of the host.
        operations = {name: row for name, row in OPERATIONS.items() if row.scope != "host"}
        known = [one for row in operations.values() for one in (row.arguments, row.answer)]
        structs = [kind.struct for kind in KINDS.values()]
        structs += [kind.identity for kind in KINDS.values() if kind.identity is not None]
        types = [*known, *structs, LoginArguments, ShownSession, Offer, Problem]
        types += [DeclaredText, DeclaredObjects, PublishTrial, SubscribeTrial]
        template = "#/components/schemas/{name}"
        schemas, self._schemas = msgspec.json.schema_components(types, ref_template=template)
        pairs = iter(schemas)
        #: Operation -> the schemas of its arguments and of its answer.
        self._operations = {name: (next(pairs), next(pairs)) for name in operations}
        for kind in KINDS.values():
            self._add_kind(kind)

    def made(self) -> Schema:
        paths: dict[str, Schema] = {
            ROOT: {"get": _fixed("index", "List every path with its methods")},
            f"{ROOT}/openapi.json": {"get": _fixed("openapi", "Describe the API")},
            "/metrics/objects": {"get": _object_metrics()},
            **_logins(),
            f"{ROOT}/config/parse": {"post": _declared()},
            **_trials(),
        }
        for route in ROUTES:
            paths.setdefault(f"{ROOT}{route.path}", {})[route.method.lower()] = self._of_route(route)
        for name in self._operations:
            paths[f"{ROOT}/operations/{name}"] = {"post": self._of_operation(name)}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Angarium management API",
                "version": __version__,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "externalDocs": {"url": f"{errors.DOCUMENTATION}management/"},
            "security": [{"basic": []}, {"bearer": []}],
            "paths": paths,
            "components": {
                "schemas": self._schemas,
                "responses": {str(status): _refusal(status, code) for status, code in _PROBLEMS.items()},
                "headers": {name: _described(*about) for name, about in _HEADERS.items()},
                "parameters": {
                    "Prefer": _PREFER,
                    "Cache-Control": _CACHE_CONTROL,
                    **{name: _query(name, *about) for name, about in _PAGING.items()},
                },
                "securitySchemes": {
                    "basic": {"type": "http", "scheme": "basic"},
                    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                },
            },
        }

    # -- objects ---------------------------------------------------------------------------------------------

    def _add_kind(self, kind: ObjectKind) -> None:
        """Add what an object of a kind is made of, and what is shown of it."""
        name = kind.struct.__name__
        given = self._schemas[name]
        own = given["properties"]
        if "password" in own:
            own["password"]["writeOnly"] = True
        self._schemas[f"New{name}"] = {
            **given,
            "properties": {"name": {"type": "string", "description": kind.name_rule}, **own},
            "required": ["name"],
        }
        shown = {key: value for key, value in own.items() if key != "password"}
        if "password" in own:
            shown["password_set"] = {"type": "boolean"}
        if kind.identity is not None:
            shown |= self._schemas[kind.identity.__name__]["properties"]
        where = {"kind": {"const": kind.name}, **({"vpn": _TEXT} if kind.in_vpn else {}), "name": _TEXT}
        shown = {**where, **shown}
        about = {"type": "object", "description": given["description"]}
        self._schemas[f"Shown{name}"] = {**about, "properties": shown, "required": list(shown)}

    def _shown(self, route: Route) -> Schema:
        """Give the schema of one thing that a route answers."""
        _, answer = self._operations[route.operation]
        kind = KINDS.get(route.fixed.get("kind", ""))
        if kind is not None and "$ref" not in answer:
            found = _reference(f"Shown{kind.struct.__name__}")
            return {"type": "array", "items": found} if answer.get("type") == "array" else found
        return answer

    # -- requests --------------------------------------------------------------------------------------------

    def _of_operation(self, name: str) -> Schema:
        asked, answer = self._operations[name]
        rule = OPERATIONS[name]
        required = bool(self._schemas[rule.arguments.__name__].get("required"))
        return {
            "operationId": name,
            "tags": ["operations"],
            "summary": rule.summary,
            "parameters": [{"$ref": "#/components/parameters/Prefer"}],
            "requestBody": {"required": required, "content": _content(asked)},
            "responses": {
                "200": {"description": "Done.", "content": _content(answer)},
                **_refusals(_PROBLEMS),
            },
        }

    def _of_route(self, route: Route) -> Schema:
        made: Schema = {
            "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
            "tags": [_tag(route)],
            "summary": route.summary,
            "parameters": list(self._parameters(route)),
        }
        if route.body is not Body.NONE:
            required = route.body is Body.OBJECT or "required" in self._asked(route)
            made["requestBody"] = {"required": required, "content": _content(self._body(route))}
        return {**made, "responses": self._responses(route)}

    def _parameters(self, route: Route) -> Iterator[Schema]:
        fields = self._schemas[OPERATIONS[route.operation].arguments.__name__]["properties"]
        for name in re.findall(r"\{(\w+)\}", route.path):
            schema = {"type": "string", "pattern": JOBS_PATTERN} if name == "jobs" else _in_path(fields[name])
            yield {"name": name, "in": "path", "required": True, "schema": schema}
        paged = _PAGING if route.shape is Shape.ROWS else {}
        for name in paged:
            yield {"$ref": f"#/components/parameters/{name}"}
        for name in route.query:
            if name not in paged:
                yield _query(name, _without_null(fields[name]))
        if route.operation in COMPARING:
            yield {
                "name": "If-Match",
                "in": "header",
                "description": "The ETag of the last GET.",
                "schema": _ETAG,
            }
        if route.shape is Shape.OBJECT and route.method == "GET":
            yield {"name": "If-None-Match", "in": "header", "description": "An ETag.", "schema": _TEXT}
        if route.is_shared:
            yield {"$ref": "#/components/parameters/Cache-Control"}
        if route.streams:
            about = "Of a stream: the id of the last event that its client had."
            yield {"name": "Last-Event-ID", "in": "header", "description": about, "schema": _TEXT}
        yield {"$ref": "#/components/parameters/Prefer"}

    def _body(self, route: Route) -> Schema:
        if route.body is Body.ARGUMENTS:
            return self._asked(route)
        name = KINDS[route.fixed["kind"]].struct.__name__
        return _reference(name if route.body is Body.ATTRIBUTES else f"New{name}")

    def _asked(self, route: Route) -> Schema:
        """Give the arguments that are not in the path."""
        whole = self._schemas[OPERATIONS[route.operation].arguments.__name__]
        elsewhere = {*re.findall(r"\{(\w+)\}", route.path), *route.fixed}
        own = {name: one for name, one in whole["properties"].items() if name not in elsewhere}
        required = [name for name in whole.get("required", ()) if name in own]
        found = {"type": "object", "properties": own, "additionalProperties": False}
        return {**found, "required": required} if required else found

    # -- answers ---------------------------------------------------------------------------------------------

    def _responses(self, route: Route) -> Schema:
        problems = {**_ALWAYS, **_NAMING}
        if route.method != "GET" or route.operation in _CONFLICTING_READS:
            problems |= _CHANGING
        if route.body is not Body.NONE:
            problems |= _WITH_BODY
        if "selector" in self._schemas[OPERATIONS[route.operation].arguments.__name__]["properties"]:
            problems |= _SELECTING
        if route.operation in COMPARING:
            problems |= _COMPARED
        headers = (*_SHAPE_HEADERS.get(route.shape, ()), *(["Age"] if route.is_shared else []))
        done: Schema = {"description": "Done.", "headers": _headers(*headers)}
        if route.shape is not Shape.NOTHING:
            shown = self._shown(route)
            done["content"] = _content(self._rows(shown) if route.shape is Shape.ROWS else shown)
        if route.streams:
            done["content"][sse.CONTENT_TYPE] = {"schema": {**_TEXT, "description": "Server-Sent Events."}}
        found = {str(_STATUS.get(route.shape, 200)): done}
        if route.shape is Shape.OBJECT and route.method == "GET":
            found["304"] = {"description": "It has not changed.", "headers": _headers("ETag")}
        return {**found, **_refusals(problems)}

    def _rows(self, rows: Schema) -> Schema:
        """Give the schema of a page: of each row only the columns that were asked for."""
        name = rows["items"]["$ref"].rpartition("/")[2]
        row = {key: value for key, value in self._schemas[name].items() if key != "required"}
        self._schemas[f"{name}Row"] = row
        return {"type": "array", "items": _reference(f"{name}Row")}


def _fixed(name: str, summary: str) -> Schema:
    """Describe a path that is no resource."""
    done = {"description": "Done.", "content": {JSON: {"schema": {"type": "object"}}}}
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["api"],
        "responses": {"200": done, **_refusals(_ALWAYS)},
    }


def _logins() -> dict[str, Schema]:
    """Describe the sessions of browsers."""
    shown = {"200": {"description": "Done.", "content": _content(_reference(ShownSession.__name__))}}
    given = {"required": True, "content": _content(_reference(LoginArguments.__name__))}
    said = "Of a session: the token that its login was answered with."
    token = {"name": SAID_WITH_CHANGES, "in": "header", "description": said, "schema": _TEXT}
    offer = {"200": {"description": "Done.", "content": _content(_reference(Offer.__name__))}}
    nothing = {"200": {"description": "Done.", "content": _content({"type": "null"})}}
    return {
        f"{ROOT}/login": {
            "get": {**_fixed("login", "Show the session"), "responses": {**shown, **_refusals(_ALWAYS)}},
            "post": {
                **_fixed(
                    "log_in", "Begin a session with name and password; its cookie comes with the answer"
                ),
                "security": [],
                "requestBody": given,
                "responses": {**shown, **_refusals({**_ALWAYS, **_WITH_BODY})},
            },
        },
        f"{ROOT}/login/certificate": {
            "post": {
                **_fixed("log_in_by_certificate", "Begin a session with the certificate of the connection"),
                "security": [],
                "responses": {**shown, **_refusals(_ALWAYS)},
            },
        },
        f"{ROOT}/login/ways": {
            "get": {
                **_fixed("login_ways", "Show which ways to log in there are"),
                "security": [],
                "responses": {**offer, **_refusals(_ALWAYS)},
            },
        },
        f"{ROOT}/logout": {
            "post": {
                **_fixed("log_out", "End the session"),
                "parameters": [token],
                "responses": {**nothing, **_refusals(_ALWAYS)},
            }
        },
    }


def _declared() -> Schema:
    """Describe what makes objects of a text."""
    shown = {"200": {"description": "Done.", "content": _content(_reference(DeclaredObjects.__name__))}}
    return {
        **_fixed("config.parse", "Give the objects that a configuration file declares, for config.apply"),
        "requestBody": {"required": True, "content": _content(_reference(DeclaredText.__name__))},
        "responses": {**shown, **_refusals({**_ALWAYS, **_WITH_BODY})},
    }


def _trials() -> dict[str, Schema]:
    """Describe trying to be a client."""
    done = {"204": {"description": "The router has taken the message."}}
    heard = {
        "200": {"description": "Messages as they come.", "content": {"text/event-stream": {"schema": _TEXT}}}
    }
    publishing = "Publish a message as a client username"
    listening = "Stream messages of topics to a client username"
    return {
        f"{ROOT}/vpns/{{vpn}}/try/publish": {"post": _trial("publish", publishing, PublishTrial, done)},
        f"{ROOT}/vpns/{{vpn}}/try/subscribe": {"post": _trial("subscribe", listening, SubscribeTrial, heard)},
    }


def _trial(does: str, summary: str, body: type[Any], answer: Schema) -> Schema:
    return {
        **_fixed(f"try.{does}", summary),
        "parameters": [{"name": "vpn", "in": "path", "required": True, "schema": _TEXT}],
        "requestBody": {"required": True, "content": _content(_reference(body.__name__))},
        "responses": {**answer, **_refusals({**_ALWAYS, **_WITH_BODY, **_NAMING})},
    }


def _object_metrics() -> Schema:
    """Describe the page for Prometheus."""
    kinds: Schema = {"type": "array", "items": {"enum": list(object_metrics.KINDS)}, "minItems": 1}
    number: Schema = {"type": "integer", "minimum": 1, "maximum": object_metrics.LIMIT_MAX}
    return {
        **_fixed("metrics.objects", "Give figures of single objects and gateways"),
        "parameters": [
            _query("kind", kinds, "Of these kinds; of all that the operator may see without it."),
            _query(
                "vpn", _TEXT, "Of this Message VPN; then nothing of links and gateways, which are in none."
            ),
            _query("name", _TEXT, "Whose name is like this pattern with * and ?."),
            _query("limit", number, "So many of each kind."),
        ],
        "responses": {
            "200": {
                "description": "The text format of Prometheus.",
                "content": {"text/plain": {"schema": _TEXT}},
            },
            **_refusals(_ALWAYS),
        },
    }


def _tag(route: Route) -> str:
    pieces = [piece for piece in route.path[1:].split("/") if not piece.startswith("{")]
    return pieces[1] if pieces[0] == "vpns" and len(pieces) > 1 else pieces[0]


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: Schema) -> Schema:
    return {kind: {"schema": schema} for kind in (JSON, MSGPACK)}


def _query(name: str, schema: Schema, description: str = "") -> Schema:
    return {
        "name": name,
        "in": "query",
        "schema": schema,
        **({"description": description} if description else {}),
    }


def _described(schema: Schema, description: str) -> Schema:
    return {"description": description, "schema": schema}


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _refusals(problems: dict[int, int]) -> Schema:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(problems)}


def _refusal(status: int, code: int) -> Schema:
    """Describe a refusal, with one code that leads to it as an example."""
    example = msgspec.to_builtins(problem_of(errors.error_for(code)))
    headers = [
        *(["Retry-After"] if status in RETRY_AFTER_S else []),
        *(["WWW-Authenticate"] if status == 401 else []),
    ]
    return {
        "description": example["title"],
        "headers": _headers(*headers),
        "content": {CONTENT_TYPE: {"schema": _reference("Problem"), "example": example}},
    }


def _in_path(schema: Schema) -> Schema:
    """Give the schema of an argument that is a piece of a path: it is never empty, and never null."""
    found = {key: value for key, value in _without_null(schema).items() if key != "default"}
    return {**found, "minLength": 1} if found.get("type") == "string" else found


def _without_null(schema: Schema) -> Schema:
    """Give the schema of an argument behind the question mark, where nothing is null."""
    kept = {key: value for key, value in schema.items() if key != "default" or value is not None}
    options = [one for one in kept.pop("anyOf", ()) if one != {"type": "null"}]
    return {**kept, **(options[0] if len(options) == 1 else {"anyOf": options} if options else {})}
