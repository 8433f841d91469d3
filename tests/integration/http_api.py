"""Clients of the management API and of the HTTP gateway for tests: requests as they are, and connections by hand."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from angarium_server.testing import Node
from cluster.admin.client import Admin

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD: Final = "of operators, for tests"
LIMIT_S: Final = 20.0
#: What an object of a kind needs beside its name, a change of it, and where it is.
OBJECTS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "vpn": ("/vpns", "v1", {}, {"enabled": False}),
    "profile": ("/vpns/default/profiles", "p1", {}, {"allow_guaranteed_send": False}),
    "acl": ("/vpns/default/acls", "a1", {}, {"publish_topic_default": "allow"}),
    "username": ("/vpns/default/usernames", "u1", {}, {"enabled": False}),
    "template": ("/vpns/default/templates", "t1", {}, {"max_bind_count": 3}),
    "queue": ("/vpns/default/queues", "q/1 ä", {}, {"max_spool_usage_mb": 7}),
    "topic-endpoint": ("/vpns/default/topic-endpoints", "te/1", {}, {"max_spool_usage_mb": 7}),
    "operator": ("/operators", "o1", {"role": "viewer"}, {"enabled": False}),
    "link": ("/links", "n1", {"addresses": ["tcp://127.0.0.1:1"]}, {"enabled": False}),
    "bridge": (
        "/vpns/default/bridges",
        "b1",
        {
            "addresses": ["tcp://127.0.0.1:1"],
            "remote_vpn": "far",
            "remote_subscriptions": ["a"],
            "enabled": False,
        },
        {"remote_vpn": "other"},
    ),
    "webhook": (
        "/vpns/default/webhooks",
        "w1",
        {"queue": "q", "url": "https://example.com/", "enabled": False},
        {"window": 2},
    ),
}


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> int:
        """Give the code of a refusal."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        assert self.value["status"] == self.status
        return int(self.value["code"])


def basic(name: str, password: str = PASSWORD) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


#: A node closes connections that nothing came over for longer.
IDLE_S: Final = 5.0


class Api:
    """One operator at one node, over one connection, which is opened again when it was not used for long."""

    def __init__(
        self,
        url: str,
        operator: str = "admin",
        password: str = PASSWORD,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.place = urlsplit(url).netloc
        self._line = http.client.HTTPConnection(self.place, timeout=LIMIT_S)
        if context is not None:
            self._line = http.client.HTTPSConnection(self.place, timeout=LIMIT_S, context=context)
        self.authorization = basic(operator, password)
        self._used_at = time.monotonic()

    def _request(
        self, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if time.monotonic() - self._used_at > IDLE_S:
            self._line.close()
        self._line.request(method, path, body, headers)
        came = self._line.getresponse()
        self._used_at = time.monotonic()
        return came

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request and give what comes back; a body that is no bytes is sent as JSON."""
        told = {"Authorization": self.authorization} | {k.replace("_", "-"): v for k, v in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            told.setdefault("Content-Type", "application/json")
        came = self._request(method, path, body, told)
        return Answer(came.status, came.headers, came.read())

    def ask_without(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask for something without saying who it is."""
        came = self._request(method, path, None, headers)
        return Answer(came.status, came.headers, came.read())

    def opened(self, path: str, **headers: str) -> http.client.HTTPResponse:
        """Give a stream of events that has begun, asked for without saying who it is."""
        told = {"Accept": "text/event-stream"} | {k.replace("_", "-"): v for k, v in headers.items()}
        came = self._request("GET", path, None, told)
        assert came.status == 200, came.read()
        return came

    def do(self, operation: str, **arguments: Any) -> Answer:
        """Do an operation by its name."""
        return self.send("POST", f"/api/v1/operations/{operation}", arguments)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", f"/api/v1{path}", **headers)

    def close(self) -> None:
        self._line.close()


class Web(Api):
    """A client of the gateway for HTTP, over one connection."""

    def __init__(self, node: Node, user: str = "", password: str = "") -> None:
        super().__init__(node.http_url)
        self.user = basic(user, password) if user else ""

    def post(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        told = {"Authorization": self.user} if self.user else {}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._line.request("POST", path, body, told)
        came = self._line.getresponse()
        return Answer(came.status, came.headers, came.read())


@contextmanager
def managed_node(
    folder: Path, config: str = "", management: str = "http://127.0.0.1:0", **more: Any
) -> Iterator[Node]:
    """Run a node with a management process, and an operator of each role whose name is the role's; admin as well."""
    file = folder / "node.toml"
    file.write_text(config)
    with Node(folder / "data", workers=1, management=management, config=file, **more) as node:
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        roles = {"admin": "administrator", "operator": "operator", "viewer": "viewer"}
        for name, role in roles.items():
            made = ("operator", "create", name, "--set", f"role={role}", "--password-file", str(password))
            node.run(*made)
        yield node


def logins(node: Node, address: str = "") -> list[dict[str, Any]]:
    """Give the logins of the audit log, of all addresses or of one."""
    with Admin(node.data) as admin:
        entries = [one for one in admin.call("audit") if one["operation"] == "login"]
    return [one for one in entries if address in ("", one["address"])]


def raw(node: Node, data: bytes) -> socket.socket:
    """Open a connection and send bytes."""
    made = socket.create_connection(place_of(node), LIMIT_S)
    made.sendall(data)
    return made


def place_of(node: Node) -> tuple[str, int]:
    found = urlsplit(node.management_url)
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


def received(made: socket.socket) -> bytes:
    """Give all that comes until the other side closes."""
    came = b""
    try:
        while piece := made.recv(65_536):
            came += piece
    except ConnectionResetError:
        pass
    made.close()
    return came
