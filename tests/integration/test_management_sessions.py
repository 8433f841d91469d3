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


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node behind a proxy of this host, by which browsers come to https://broker.example."""
    config = '[management]\npublic_url = "https://broker.example"\nproxies = ["127.0.0.1"]\n'
    with managed_node(tmp_path_factory.mktemp("proxied"), config) as running:
        yield running


class Browser(Api):
    """Keeps the cookie and the token of its session."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: dict[str, str] = {}

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        # Without name and password, which `Api` always says.
        self._line.putrequest(method, path, skip_host="Host" in headers)
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


@pytest.mark.parametrize("host", ["broker.example", "127.0.0.1:8090"])
def test_behind_a_proxy_that_ends_tls_a_page_logs_in_and_changes(proxied: Node, host: str) -> None:
    browser = Browser(proxied.management_url)
    passed_on = {"Host": host, "Origin": "https://broker.example", "X_Forwarded_For": "192.0.2.7"}
    login = {"name": "viewer", "password": PASSWORD}
    answer = browser.send("POST", "/api/v1/login", login, **passed_on)
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-angarium")
    assert all(part in cookie for part in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"))
    assert "Domain" not in cookie
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
    browser.kept = {"Cookie": cookie.partition(";")[0], "Angarium-Token": answer.value["token"]}
    assert browser.send("POST", STATUS, {}, **passed_on).status == 200
    foreign = {**passed_on, "Origin": "https://evil.example"}
    assert browser.send("POST", STATUS, {}, **foreign).code == errors.CROSS_ORIGIN
    entries = json.loads("[" + ",".join(proxied.run("audit", "--json").splitlines()) + "]")
    assert [one["address"] for one in entries if one["operation"] == "login"][-1] == "192.0.2.7"
    out = browser.send("POST", "/api/v1/logout", **passed_on)
    assert (out.status, "Max-Age=0" in out.headers["Set-Cookie"]) == (200, True)
    browser.close()
