"""The part of an API server of Kubernetes that keeps Leases, over real HTTP, as it is documented.

`test_lease_server.py` says what that is. It can also be slow, refuse, and carry out without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tests.integration.server_thread import ServerThread

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

API: Final = "coordination.k8s.io/v1"
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_STATUS: Final = {
    "Unauthorized": 401,
    "BadRequest": 400,
    "NotFound": 404,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Invalid": 422,
    "InternalError": 500,
    "UnsupportedMediaType": 415,
}


class _RefusedError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class LeaseServer(ServerThread):
    """In a thread of its own; use it as a context manager."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        #: By namespace and name.
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        #: Bearer tokens of accounts that may do everything; empty: whoever comes.
        self.tokens: set[str] = set()
        #: While it is set, nothing is answered.
        self.hangs = False
        #: So many writes are carried out, and their connections end without an answer.
        self.swallows = 0
        #: So many requests are answered with an internal error.
        self.fails = 0
        #: Method and status of each request that was answered.
        self.answered: list[tuple[str, int]] = []
        self._version = 100
        #: What a pod has of its account, unless a test makes one.
        self.account_folder = Path("there-is-none")

    @property
    def url(self) -> str:
        return self.address

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Give no answers meanwhile."""
        self.hangs = True
        yield
        self.hangs = False

    def _application(self) -> web.Application:
        application = web.Application()
        path = f"/apis/{API}/namespaces/{{namespace}}/leases"
        application.router.add_route("POST", path, self._serve)
        application.router.add_route("*", f"{path}/{{name}}", self._serve)
        return application

    async def _serve(self, request: web.Request) -> web.Response:
        while self.hangs:
            await asyncio.sleep(0.01)
        try:
            status, body = await self._answer(request)
        except _RefusedError as refused:
            status = _STATUS[refused.reason]
            body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            body |= {"message": refused.message, "reason": refused.reason, "code": status}
        if self.swallows and request.method != "GET" and status < 400:
            self.swallows -= 1
            assert request.transport is not None
            request.transport.abort()
        self.answered.append((request.method, status))
        return web.json_response(body, status=status)

    async def _answer(self, request: web.Request) -> tuple[int, dict[str, Any]]:
        if self.fails:
            self.fails -= 1
            raise _RefusedError("InternalError", "etcdserver: request timed out")
        if (
            self.tokens
            and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens
        ):
            raise _RefusedError("Unauthorized", "Unauthorized")
        namespace, name = request.match_info["namespace"], request.match_info.get("name", "")
        if request.method in ("POST", "PUT"):
            if request.content_type != "application/json":
                raise _RefusedError(
                    "UnsupportedMediaType", "the body of the request was in an unknown format"
                )
            given = await request.json()
            return self._create(namespace, given) if not name else self._update((namespace, name), given)
        if (namespace, name) not in self.leases:
            raise _not_found(name)
        if request.method == "DELETE":
            del self.leases[namespace, name]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, self.leases[namespace, name]

    def _create(self, namespace: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        _check(given)
        name = given["metadata"]["name"]
        if (namespace, name) in self.leases:
            raise _RefusedError("AlreadyExists", f'leases.{API[:-3]} "{name}" already exists')
        if given["metadata"].get("resourceVersion"):
            raise _RefusedError("InternalError", "resourceVersion should not be set on objects to be created")
        metadata = {**given["metadata"], "namespace": namespace, "uid": str(uuid.uuid4())}
        return 201, self._keep((namespace, name), {**given, "metadata": metadata})

    def _update(self, key: tuple[str, str], given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        _check(given)
        there, metadata = self.leases.get(key), given["metadata"]
        if metadata["name"] != key[1]:
            raise _RefusedError("BadRequest", "the name of the object does not match the name on the URL")
        version, uid = metadata.get("resourceVersion", ""), metadata.get("uid", "")
        if there is None:
            if uid:
                raise _RefusedError("Conflict", "Precondition failed: UID in precondition")
            return self._create(key[0], {**given, "metadata": {**metadata, "resourceVersion": ""}})
        if not version:
            text = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise _RefusedError("Invalid", text)
        if version != there["metadata"]["resourceVersion"] or uid not in ("", there["metadata"]["uid"]):
            text = (
                "the object has been modified; please apply your changes to the latest version and try again"
            )
            raise _RefusedError("Conflict", text)
        kept = {**given, "metadata": {**metadata, "namespace": key[0], "uid": there["metadata"]["uid"]}}
        return 200, there if kept == there else self._keep(key, kept)

    def _keep(self, key: tuple[str, str], lease: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        kept = copy.deepcopy(lease)
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.leases[key] = kept
        return kept


def _not_found(name: str) -> _RefusedError:
    return _RefusedError("NotFound", f'leases.{API[:-3]} "{name}" not found')


def _check(given: dict[str, Any]) -> None:
    """Refuse what an API server does not take."""
    if given.get("kind") != "Lease" or given.get("apiVersion") != API:
        raise _RefusedError("BadRequest", "the object is none of this kind")
    spec = given.get("spec", {})
    for key in ("acquireTime", "renewTime"):
        if key in spec and not _MICRO_TIME.fullmatch(spec[key]):
            raise _RefusedError("BadRequest", f"{key}: cannot parse {spec[key]!r}")
    if spec.get("leaseDurationSeconds", 1) <= 0:
        raise _RefusedError("Invalid", "spec.leaseDurationSeconds: must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        raise _RefusedError("Invalid", "spec.leaseTransitions: must be greater than or equal to 0")
    if not all(isinstance(value, str) for value in given["metadata"].get("annotations", {}).values()):
        raise _RefusedError("BadRequest", "annotations are text")
