"""Sessions of browsers at the management API of a running node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from tests.integration.http_api import PASSWORD, Answer, Api, managed_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

STATUS = "/api/v1/operations/status"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("sessions")) as running:
        yield running


class Browser(Api):
    """Keeps the cookie and the token of its session."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: dict[str, str] = {}

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        # Without name and password, which `Api` always says.
        self._line.putrequest(method, path)
        told = self.kept | {name.replace("_", "-"): value for name, value in headers.items()}
        return self._finish(told, body)

    def _finish(self, told: dict[str, str], body: object) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        if data:
            told["Content-Type"] = "application/json"
        for name, value in {**told, "Content-Length": str(len(data))}.items():
            self._line.putheader(name, value)
        self._line.endheaders(data)
        came = self._line.getresponse()
        return Answer(came.status, came.headers, came.read())

    def log_in(self, name: str, password: str = PASSWORD) -> Answer:
        answer = self.send("POST", "/api/v1/login", {"name": name, "password": password})
        if answer.status == 200:
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.kept = {"Cookie": cookie, "Angarium-Token": answer.value["token"]}
        return answer


@pytest.fixture
def browser(node: Node) -> Iterator[Browser]:
    made = Browser(node.management_url)
    yield made
    made.close()


def test_a_browser_logs_in_asks_changes_and_logs_out(browser: Browser) -> None:
    answer = browser.log_in("viewer")
    assert answer.value["operator"] == "viewer"
    cookie = answer.headers["Set-Cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert browser.get("/me").value == {"name": "viewer", "role": "viewer", "vpn": ""}
    assert browser.get("/login").value["token"] == browser.kept["Angarium-Token"]
    assert browser.send("POST", STATUS, {}).status == 200
    assert browser.do("endpoints.purge", kind="queue", name="none").status == 403
    assert browser.send("POST", "/api/v1/logout").status == 200
    assert browser.get("/me").code == errors.UNAUTHORIZED


def test_a_change_without_the_token_is_refused(browser: Browser) -> None:
    browser.log_in("admin")
    for token in ("", "guessed"):
        assert browser.send("POST", STATUS, {}, Angarium_Token=token).code == errors.CROSS_ORIGIN
    foreign = browser.send("POST", "/api/v1/login", {}, Origin="http://elsewhere.example")
    assert foreign.code == errors.CROSS_ORIGIN


def test_a_login_that_fails_opens_no_window_of_the_browser(browser: Browser) -> None:
    refused = browser.log_in("admin", "wrong")
    assert refused.code == errors.UNAUTHORIZED
    assert "Basic" not in refused.headers["WWW-Authenticate"]
    assert browser.send("POST", "/api/v1/login", {"name": "admin"}).code == errors.INVALID_ARGUMENT
    assert browser.get("/login").code == errors.UNAUTHORIZED


def test_an_operator_who_is_disabled_has_no_session_any_more(node: Node, browser: Browser) -> None:
    browser.log_in("operator")
    assert browser.get("/me").status == 200
    node.run("operator", "update", "operator", "--set", "enabled=false")
    assert browser.get("/me").code == errors.UNAUTHORIZED
