"""Decisions of the management process: who asks, what for, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from angarium import errors
from angarium_server.http.bodies import NESTED_MAX, is_deep
from angarium_server.http.problems import BAD_GATEWAY, problem_of, status_of
from angarium_server.http.proxies import public_of
from cluster.configuration.listening import url_of, with_port
from cluster.configuration.management import ManagementSection, faults_of
from cluster.management.access.attempts import ADDRESS_BURST
from cluster.management.access.logins import STRANGERS_MAX, Given, basic
from cluster.management.access.logins import Logins as ByPassword
from cluster.management.access.outcomes import Outcomes
from cluster.management.access.remembered import REMEMBERED_S, Remembered
from cluster.management.api.routes import target_of
from cluster.security import passwords
from router.ground.config import RouterConfig

STORED = passwords.hash_password("right", b"0123456789abcdef")


def header(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


class Node:
    """Answers like the controller; `told` has the logins that it was told of."""

    def __init__(self) -> None:
        self.stored = STORED
        self.role = "operator"
        self.is_enabled = True
        self.told: list[dict[str, Any]] = []

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "operators.logged_in":
            self.told.append(arguments)
            return None
        is_known = arguments["name"] == "anna"
        password = self.stored if is_known else passwords.unfitting()
        told = {"name": arguments["name"], "role": self.role, "vpn": "", "vpns": 1}
        return {**told, "password": password, "enabled": is_known and self.is_enabled}


class Logins(ByPassword):
    """Logins with their own outcomes."""

    def __init__(self, ask: Any) -> None:
        self.outcomes = Outcomes(ask)
        super().__init__(ask, self.outcomes)


def code_of(call: Any) -> int:
    with pytest.raises(errors.AngariumError) as refused:
        call()
    return refused.value.code


def login(known: Logins, text: str, address: str = "10.0.0.7") -> str:
    return asyncio.run(known.caller(header(text), address)).name


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"listen": ["http://0.0.0.0:8090"]}, "'angarium up --management https://0.0.0.0:8090 --cert-file"),
        ({"listen": ["https://127.0.0.1:8090"]}, "it needs a certificate"),
        ({"listen": ["tcp://127.0.0.1:8090"]}, "is no address"),
        ({"listen": ["http://127.0.0.1:8090/api"]}, "is no address"),
        ({"listen": ["http://127.0.0.1"]}, "is no address"),
        (
            {"listen": ["http://127.0.0.1:1", "https://127.0.0.1:1"], "tls_cert_file": "f"},
            "another entry has",
        ),
        (
            {"listen": ["https://127.0.0.1:1"], "tls_cert_file": "none.pem"},
            "management.tls_cert_file: none.pem",
        ),
        ({"tls_client_certificates": "optional"}, "write management.tls_client_ca_file"),
        ({"tls_client_ca_file": "none.pem"}, "management.tls_client_ca_file: none.pem"),
        ({"token_issuers": ["login"]}, "no [[issuers]] has the name 'login'"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_what_to_do(section: dict[str, Any], told: str) -> None:
    (fault,) = faults_of(msgspec.convert(section, ManagementSection), RouterConfig())
    assert fault.startswith("management.")
    assert told in fault


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://broker.example", ""),
        ("https://broker.example:8443/", ""),
        ("https://[2001:db8::1]", ""),
        ("http://localhost:8090", ""),
        ("http://127.0.0.1", ""),
        ("http://broker.example", "in the clear"),
        ("http://[2001:db8::1]:80", "in the clear"),
        ("https://broker.example/angarium", "without a path"),
        ("https://broker.example/?a", "without a path"),
        ("https://anna@broker.example", "write https://HOST"),
        ("broker.example", "write https://HOST"),
        ("https://broker.example:99999", "out of range"),
    ],
)
def test_the_address_of_browsers_is_one_of_tls_without_a_path(url: str, told: str) -> None:
    section = ManagementSection(public_url=url)
    assert [told in fault for fault in faults_of(section, RouterConfig())] == ([True] if told else [])


def test_a_proxy_is_an_address_or_a_network() -> None:
    section = ManagementSection(proxies=["127.0.0.1", "10.0.0.0/8", "nginx"])
    (fault,) = faults_of(section, RouterConfig())
    assert fault.startswith("management.proxies: 'nginx'")


def test_a_browser_is_told_to_come_by_tls_alone_where_nothing_else_is() -> None:
    assert public_of("https://broker.example").headers
    assert not public_of("https://broker.example:8443").headers, "it would count for all ports of that host"
    assert not public_of("").is_encrypted


def test_an_entry_is_bound_as_an_address_and_gets_its_port() -> None:
    assert url_of("http://[::1]:0") == "tcp://[::1]:0"
    assert url_of("https://node:8443") == "tls://node:8443"
    assert with_port("http://[::1]:0", "tcp://[::1]:4711") == "http://[::1]:4711"
    assert faults_of(ManagementSection(listen=["http://[::1]:0", "http://127.0.0.1:0"]), RouterConfig()) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (header("anna:secret"), Given("anna", "secret")),
        (header("anna:se:cret"), Given("anna", "se:cret")),
        (header("änna:"), Given("änna", "")),
        (header("anna:x").replace("Basic", "basic"), Given("anna", "x")),
    ],
)
def test_name_and_password_are_taken_from_the_header(given: str, expected: Given) -> None:
    assert basic(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Basic",
        "Bearer abc",
        "Basic !",
        "Basic /w==",
        header("anna"),
        header(":x"),
        header("a" * 300 + ":"),
    ],
)
def test_whatever_else_is_there_is_nobody(given: str | None) -> None:
    assert code_of(lambda: basic(given)) == errors.UNAUTHORIZED


def test_an_operator_logs_in_and_the_node_is_told() -> None:
    node = Node()
    known = Logins(node.ask)
    assert login(known, "anna:right") == "anna"
    outcome = {"name": "anna", "address": "10.0.0.7", "method": "password", "outcome": "done"}
    assert node.told == [outcome]
    assert login(known, "anna:right") == "anna"
    assert node.told == [outcome]  # the same login


def test_a_password_that_fitted_is_not_compared_again_until_it_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, compared = Node(), []

    def fits(stored: str, password: str) -> bool:
        compared.append(password)
        return password == ("right" if stored == STORED else "new")

    monkeypatch.setattr(passwords, "fits", fits)
    known = Logins(node.ask)
    for _ in range(5):
        login(known, "anna:right")
    assert compared == ["right"]
    node.stored = "another"
    assert code_of(lambda: login(known, "anna:right")) == errors.UNAUTHORIZED
    assert login(known, "anna:new") == "anna"


def test_who_is_disabled_is_refused_with_the_next_request() -> None:
    node = Node()
    known = Logins(node.ask)
    login(known, "anna:right")
    node.is_enabled = False
    assert code_of(lambda: login(known, "anna:right")) == errors.UNAUTHORIZED


def test_what_is_taken_from_an_operator_while_his_password_is_compared_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """He gets answers that are kept by what is told of him at his login."""
    node = Node()
    known = Logins(node.ask)

    def taken(_stored: str, _password: str) -> bool:
        node.role = "viewer"
        return True

    def disabled(_stored: str, _password: str) -> bool:
        node.is_enabled = False
        return True

    monkeypatch.setattr(passwords, "fits", taken)
    assert asyncio.run(known.caller(header("anna:right"), "10.0.0.7")).role == "viewer"
    monkeypatch.setattr(passwords, "fits", disabled)
    assert code_of(lambda: login(known, "anna:right", "10.0.1.7")) == errors.UNAUTHORIZED


def test_who_fails_too_often_is_put_off_and_who_is_known_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "fits", lambda _stored, password: password == "right")
    known = Logins(Node().ask)
    login(known, "anna:right")
    for _ in range(ADDRESS_BURST):
        assert code_of(lambda: login(known, "anna:wrong")) == errors.UNAUTHORIZED
    assert code_of(lambda: login(known, "anna:wrong")) == errors.CONNECT_RATE_EXCEEDED
    assert login(known, "anna:right") == "anna"
    assert code_of(lambda: login(known, "anna:wrong", "10.0.0.8")) == errors.UNAUTHORIZED
    assert known.outcomes.counts == {"logins": 1, "logins_failed": ADDRESS_BURST + 1, "logins_put_off": 1}


def test_many_wrong_passwords_at_once_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "fits", lambda _stored, _password: False)
    known = Logins(Node().ask)

    async def all_at_once() -> list[Any]:
        tries = [known.caller(header(f"anna:{number}"), "10.0.0.7") for number in range(3 * ADDRESS_BURST)]
        return await asyncio.gather(*tries, return_exceptions=True)

    codes = [error.code for error in asyncio.run(all_at_once())]
    assert codes.count(errors.UNAUTHORIZED) == ADDRESS_BURST


def test_a_password_that_was_not_compared_for_load_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "fits", lambda _stored, password: password == "right")
    node = Node()
    known = Logins(node.ask)
    known._comparing = STRANGERS_MAX  # as if others were being compared
    for _ in range(3 * ADDRESS_BURST):
        assert code_of(lambda: login(known, "anna:right")) == errors.CONNECT_RATE_EXCEEDED
    assert node.told == []
    known._comparing = 0
    assert login(known, "anna:right") == "anna"
    assert known.outcomes.counts == {"logins": 1, "logins_put_off": 3 * ADDRESS_BURST}
    known._comparing = STRANGERS_MAX
    known._remembered = Remembered()
    assert login(known, "anna:right") == "anna", "who has logged in from there has places of its own"


def test_strangers_in_many_networks_shut_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "fits", lambda _stored, password: password == "right")
    known = Logins(Node().ask)
    assert login(known, "anna:right", "192.0.2.1") == "anna"
    known._remembered = Remembered()

    async def from_everywhere() -> list[Any]:
        tries = [
            known.caller(header("anna:wrong"), f"10.{network}.0.1")
            for network in range(20)
            for _ in range(ADDRESS_BURST)
        ]
        return await asyncio.gather(*tries, return_exceptions=True)

    codes = [error.code for error in asyncio.run(from_everywhere())]
    assert codes.count(errors.CONNECT_RATE_EXCEEDED) > 100, "they are slowed down together"
    assert login(known, "anna:right", "192.0.2.1") == "anna", "where she has been before"
    assert login(known, "anna:right", "198.51.100.1") == "anna", "and where she is for the first time"


def test_a_password_is_remembered_for_a_while_for_its_hash_alone() -> None:
    known = Remembered()
    known.add("hash", "right", "10.0.0.7", now=0.0)
    assert known.has("hash", "right", "10.0.0.7", now=REMEMBERED_S - 1)
    assert not known.has("hash", "right", "10.0.0.7", now=REMEMBERED_S)
    assert not known.has("other", "right", "10.0.0.7", now=0.0)
    assert not known.has("hash", "right", "10.0.0.8", now=0.0), "who guesses elsewhere is slowed down"
    assert not Remembered().has("hash", "right", "10.0.0.7", now=0.0)


@pytest.mark.parametrize(
    ("raw", "path", "query"),
    [
        ("/api/v1", ("api", "v1"), {}),
        (
            "/vpns/a%2Fb/x?limit=5&filter=a&filter=b",
            ("vpns", "a/b", "x"),
            {"limit": ["5"], "filter": ["a", "b"]},
        ),
        ("/a//b/%2e%2e/../c", ("a", "", "b", "..", "..", "c"), {}),
        ("/a%252Fb", ("a%2Fb",), {}),
        ("/a+b?c=d+e", ("a+b",), {"c": ["d e"]}),
        ("/a/%3F./%3F../%3F.../b%3F..", ("a", ".", "..", "?...", "b?.."), {}),
    ],
)
def test_a_path_is_taken_apart_before_it_is_decoded(
    raw: str, path: tuple[str, ...], query: dict[str, Any]
) -> None:
    assert target_of(raw) == (path, query)


@pytest.mark.parametrize(
    "raw", ["*", "http://127.0.0.1/api/v1", "", "/%ff", "/a?%ff=1", "/a?b", "/a?" + "b=1&" * 60]
)
def test_what_is_no_path_is_refused(raw: str) -> None:
    assert code_of(lambda: target_of(raw)) == errors.INVALID_ARGUMENT


def test_the_status_of_a_refusal_is_the_family_of_its_code() -> None:
    for code in errors.ERRORS:
        assert status_of(code) == (BAD_GATEWAY if code >= 60_000 else code // 100)
    told = problem_of(errors.error_for(errors.OBJECT_NOT_FOUND, "queue 'q'"))
    assert (told.status, told.code, told.title, told.detail) == (404, 40401, "Not Found", "queue 'q'")
    assert told.advice


def test_what_is_nested_too_deeply_is_found() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    assert not is_deep(nested(NESTED_MAX))
    assert is_deep(nested(NESTED_MAX + 1))
    assert is_deep(nested(100_000))
