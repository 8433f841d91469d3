"""Operators who log in in the browser by OpenID Connect, at a running node and an issuer that is real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from contextlib import contextmanager
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from angarium import errors
from cluster.configuration.management import OidcSection
from cluster.management.openid.provider import Provider
from cluster.management.openid.sign_on import SignOn
from tests.integration.http_api import LIMIT_S, PASSWORD, Answer, Api, logins, managed_node
from tests.integration.oidc_issuer import CLIENT, REDIRECT_URI, SECRET, Issuer
from tests.token_issuer import TokenMaker, handmade, signed_with_public_key
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R258")]

CONFIG = """
[management]
public_url = "https://broker.example"
proxies = ["127.0.0.1"]

[oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret_file = "{secret}"
scopes = ["openid", "profile"]
label = "Staff"
timeout_s = 1
clock_skew_s = 0
"""
HOST = "broker.example"
OTHER = TokenMaker("ES256", 91)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("oidc")
    secret = folder / "client.secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    with managed_node(folder, CONFIG.format(issuer=issuer.issuer, client=CLIENT, secret=secret)) as running:
        running.run("operator", "create", "anna", "--set", "role=operator", "--set", "token_subject=anna-1")
        running.run("operator", "create", "ben", "--set", "token_subject=ben-1", "--set", "enabled=false")
        yield running


def at_issuer(address: str) -> dict[str, str]:
    """Go to the issuer, and give what it sends back to the node."""
    place = urlsplit(address)
    line = http.client.HTTPConnection(place.netloc, timeout=LIMIT_S)
    line.request("GET", f"{place.path}?{place.query}")
    came = line.getresponse()
    came.read()
    line.close()
    back, _, query = came.headers["Location"].partition("?")
    assert back == REDIRECT_URI
    return {name: values[0] for name, values in parse_qs(query).items()}


class Browser:
    """Keeps cookies, and comes by the proxy from an address of its own."""

    _addresses = 0

    def __init__(self, node: Node) -> None:
        Browser._addresses += 1
        self.address = f"192.0.2.{Browser._addresses}"
        self._line = http.client.HTTPConnection(urlsplit(node.management_url).netloc, timeout=LIMIT_S)
        self.cookies: dict[str, str] = {}
        #: Name of a cookie -> how it was given.
        self.given: dict[str, str] = {}

    def _told(self, headers: dict[str, str]) -> dict[str, str]:
        told = {"Host": HOST, "X-Forwarded-For": self.address}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            told["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return told

    @contextmanager
    def stream(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """Give a stream of events, which has begun."""
        line = http.client.HTTPConnection(self._line.host, self._line.port, timeout=LIMIT_S)
        line.request("GET", path, headers=self._told({"Accept": "text/event-stream"}))
        came = line.getresponse()
        assert came.status == 200
        yield came
        came.close()
        line.close()

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        told = self._told(headers)
        data = None if body is None else json.dumps(body).encode()
        self._line.request(method, path, data, {**told, "Content-Type": "application/json"})
        came = self._line.getresponse()
        for given in came.headers.get_all("Set-Cookie") or ():
            for name, morsel in SimpleCookie(given).items():
                self.given[name] = given
                self.cookies[name] = morsel.value
                if not morsel.value:
                    del self.cookies[name]
        return Answer(came.status, came.headers, came.read())

    def away(self) -> str:
        """Begin a login, and give where the browser is sent."""
        sent = self.send("GET", "/login/oidc", Accept="text/html")
        assert sent.status == 302, sent.body
        return sent.headers["Location"]

    def back(self, query: dict[str, str], **headers: str) -> Answer:
        return self.send("GET", f"/login/oidc/callback?{urlencode(query)}", **headers)

    def log_in(self) -> Answer:
        return self.back(at_issuer(self.away()))

    def close(self) -> None:
        self._line.close()


@pytest.fixture
def browser(node: Node, issuer: Issuer) -> Iterator[Browser]:
    made = Browser(node)
    yield made
    made.close()
    issuer.changed, issuer.described, issuer.mood = {}, {}, "serve"
    issuer.sign = lambda claims: issuer.makers[0].token(**claims)


def session_of(browser: Browser) -> str:
    """Give the cookie of the session; empty if there is none."""
    return browser.cookies.get("__Host-angarium", "")


@pytest.mark.requirement("R259")
def test_an_operator_logs_in_works_and_logs_out(node: Node, issuer: Issuer, browser: Browser) -> None:
    assert browser.send("GET", "/api/v1/login/ways").value["oidc"] == {
        "path": "/login/oidc",
        "label": "Staff",
    }
    sent = browser.away()
    assert sent.startswith(f"{issuer.issuer}/authorize?theme=dark&response_type=code&")
    begun = browser.given["__Host-angarium-oidc"]
    assert all(part in begun for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=600"))
    page = browser.back(at_issuer(sent), Accept="text/html")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'content="0;url=/"' in page.body
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    kept = browser.given["__Host-angarium"]
    assert all(part in kept for part in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"))
    assert set(browser.cookies) == {"__Host-angarium"}, "what was begun is over"
    session = browser.send("GET", "/api/v1/login").value
    assert (session["operator"], session["method"]) == ("anna", "oidc")
    assert browser.send("GET", "/api/v1/me").value == {"name": "anna", "role": "operator", "vpn": ""}
    change = ("POST", "/api/v1/operations/objects.create", {"kind": "queue", "name": "q", "attributes": {}})
    assert browser.send(*change).code == errors.CROSS_ORIGIN
    said = {"Angarium_Token": session["token"], "Origin": "https://broker.example"}
    assert browser.send(*change, **said).status == 200
    assert browser.send(*change, **{**said, "Origin": "https://evil.example"}).code == errors.CROSS_ORIGIN
    assert browser.send("POST", "/api/v1/logout", **said).status == 200
    assert browser.send("GET", "/api/v1/login").code == errors.UNAUTHORIZED
    (entry,) = logins(node, browser.address)
    assert (entry["who"], entry["role"], entry["outcome"]) == ("anna", "operator", "done")
    assert entry["asked"] == {"method": "oidc", "subject": "anna-1"}
    kept_on_disk = "".join(path.read_text() for path in (node.data / "audit").glob("*.jsonl"))
    for secret in (SECRET, issuer.posts[-1]["code"], issuer.posts[-1]["code_verifier"], session["token"]):
        assert secret not in kept_on_disk


def test_a_page_that_cannot_be_reached_is_no_way_to_another_site(browser: Browser) -> None:
    sent = browser.send("GET", "/login/oidc?next=https://evil.example&redirect_uri=https://evil.example")
    assert "evil" not in sent.headers["Location"]
    query = at_issuer(sent.headers["Location"])
    page = browser.back({**query, "next": "https://evil.example"})
    assert page.status == 200
    assert b"evil" not in page.body
    assert "Location" not in page.headers
    assert browser.send("POST", "/login/oidc").code == errors.METHOD_NOT_ALLOWED
    assert browser.send("GET", "/login/oidc/other").code == errors.UNKNOWN_RESOURCE


def swapped(browser: Browser, query: dict[str, str]) -> None:
    """Another login begins in the browser meanwhile."""
    browser.away()


def forged(browser: Browser, query: dict[str, str]) -> None:
    data, _, signature = browser.cookies["__Host-angarium-oidc"].partition(".")
    browser.cookies["__Host-angarium-oidc"] = f"{data[:-4]}AAAA.{signature}"


WRONG_ANSWERS: dict[str, Any] = {
    "another state": lambda _, query: query.update(state="guessed"),
    "no state": lambda _, query: query.pop("state"),
    "another browser": lambda browser, _: browser.cookies.clear(),
    "another login": swapped,
    "a forged cookie": forged,
    "no code": lambda _, query: query.pop("code"),
    "a code that was not given": lambda _, query: query.update(code="guessed"),
    "another issuer": lambda _, query: query.update(iss="https://evil.example"),
    "a refusal": lambda _, query: query.update(error="access_denied<script>"),
}


@pytest.mark.requirement("R259")
@pytest.mark.parametrize("kind", WRONG_ANSWERS)
def test_an_answer_that_was_not_asked_for_leads_nowhere(node: Node, browser: Browser, kind: str) -> None:
    query = at_issuer(browser.away())
    WRONG_ANSWERS[kind](browser, query)
    page = browser.back(query, Accept="text/html")
    assert (page.status, session_of(browser)) == (401, "")
    assert b"40101" in page.body
    assert b"<script>" not in page.body
    (entry,) = logins(node, browser.address)
    assert (entry["outcome"], entry["who"], entry["asked"]["method"]) == (errors.UNAUTHORIZED, "", "oidc")
    assert entry["asked"]["reason"]


def test_an_answer_counts_once(browser: Browser) -> None:
    query = at_issuer(browser.away())
    cookie = dict(browser.cookies)
    assert browser.back(query).status == 200
    browser.cookies = cookie
    again = browser.back(query)
    assert (again.code, again.value["detail"]) == (errors.UNAUTHORIZED, "this answer has come before")
    assert "Basic" not in again.headers["WWW-Authenticate"]


def test_a_code_of_somebody_else_is_not_taken(node: Node, issuer: Issuer, browser: Browser) -> None:
    """Whoever steals a code cannot use it in a login of his own: PKCE."""
    stolen = at_issuer(browser.away())["code"]
    thief = Browser(node)
    query = at_issuer(thief.away())
    refused = thief.back({**query, "code": stolen})
    assert refused.code == errors.UNAUTHORIZED
    assert "invalid_grant" in refused.value["detail"]
    thief.close()


WRONG_TOKENS: dict[str, Any] = {
    "another nonce": {"nonce": "of another login"},
    "no nonce": {"nonce": None},
    "another audience": {"aud": "somebody else"},
    "a shared audience": {"aud": [CLIENT, "somebody else"]},
    "another party": {"azp": "somebody else"},
    "another issuer": {"iss": "https://evil.example"},
    "over": {"exp": int(time.time()) - 10},
    "of the future": {"iat": int(time.time()) + 1_000_000},
    "nobody": {"sub": "nobody-1"},
    "no subject": {"sub": None},
    "somebody disabled": {"sub": "ben-1"},
    "the name of an operator": {"sub": "admin"},
    "not signed": lambda claims: handmade({"alg": "none"}, OTHER.claims(**claims)),
    "another key": lambda claims: OTHER.token(**claims),
    "signed with the public key": lambda claims: signed_with_public_key(OTHER, OTHER.claims(**claims)),
    "no token": lambda _claims: "abc",
}


@pytest.mark.requirement("R259")
@pytest.mark.parametrize("kind", WRONG_TOKENS)
def test_a_token_that_does_not_count_opens_no_session(
    node: Node, issuer: Issuer, browser: Browser, kind: str
) -> None:
    wrong = WRONG_TOKENS[kind]
    if isinstance(wrong, dict):
        issuer.changed = wrong
    else:
        issuer.sign = wrong
    refused = browser.log_in()
    assert (refused.status, refused.code, session_of(browser)) == (401, errors.UNAUTHORIZED, "")
    (entry,) = logins(node, browser.address)
    assert (entry["outcome"], entry["who"]) == (errors.UNAUTHORIZED, "")
    assert entry["asked"]["reason"] == refused.value["detail"]


def test_a_session_ends_with_its_operator(node: Node, issuer: Issuer, browser: Browser) -> None:
    node.run("operator", "create", "carl", "--set", "token_subject=carl-1", "--set", "role=viewer")
    issuer.changed = {"sub": "carl-1", "aud": [CLIENT]}
    for change in ("enabled=false", "token_subject=other"):
        node.run("operator", "update", "carl", "--set", "enabled=true", "--set", "token_subject=carl-1")
        assert browser.log_in().status == 200
        assert browser.send("GET", "/api/v1/me").status == 200
        with browser.stream("/api/v1/events?event=VPN_*") as stream:
            node.run("operator", "update", "carl", "--set", change)
            told = stream.read()
        assert f'"code":{errors.UNAUTHORIZED}'.encode() in told, "a stream of the session ends by itself"
        assert browser.send("GET", "/api/v1/me").code == errors.UNAUTHORIZED


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
def test_the_node_says_which_client_it_is_as_the_issuer_wants_it(
    tmp_path: Path, issuer: Issuer, method: str
) -> None:
    secret = tmp_path / "client.secret"
    secret.write_text(SECRET)
    issuer.described = {"token_endpoint_auth_methods_supported": [method]}
    issuer.is_public = method == "none"
    section = OidcSection(
        issuer=issuer.issuer,
        client_id=CLIENT,
        client_secret_file="" if issuer.is_public else str(secret),
    )
    try:
        assert asyncio.run(token_of(issuer, section))
        form = issuer.posts[-1]
        assert (form.get("client_secret"), form.get("client_id")) == {
            "client_secret_basic": (None, None),
            "client_secret_post": (SECRET, CLIENT),
            "none": (None, CLIENT),
        }[method]
        secret.write_text("another")
        if method != "none":
            with pytest.raises(errors.UnauthorizedError, match="invalid_client"):
                asyncio.run(token_of(issuer, section))
    finally:
        issuer.described, issuer.is_public = {}, False


async def token_of(issuer: Issuer, section: OidcSection) -> str:
    """Go to the issuer, and have the code that it gives exchanged."""
    provider, flow = Provider(section), SignOn(section, REDIRECT_URI)
    try:
        metadata = await provider.metadata()
        _, begun = flow.begin(0.0)
        code = at_issuer(flow.address(metadata.authorization_endpoint, begun))["code"]
        return await provider.exchange(code, begun.verifier, REDIRECT_URI)
    finally:
        await provider.close()


@pytest.mark.parametrize("mood", ["slow", "drip", "wrong", "huge", "error", "redirect"])
def test_an_issuer_that_fails_is_told_and_passwords_go_on(
    node: Node, issuer: Issuer, browser: Browser, mood: str
) -> None:
    query = at_issuer(browser.away())
    issuer.mood = mood
    began = time.monotonic()
    failed = browser.back(query, Accept="text/html")
    assert time.monotonic() - began < 20.0
    assert (failed.status, session_of(browser)) == (503, "")
    assert b"50332" in failed.body
    assert SECRET.encode() not in failed.body
    api = Api(node.management_url)
    assert api.get("/me").value["name"] == "admin"
    api.close()
    (entry,) = logins(node, browser.address)
    assert entry["outcome"] == errors.ISSUER_UNAVAILABLE


@pytest.mark.parametrize(
    ("described", "told"),
    [
        ({"issuer": "https://evil.example"}, "write that as oidc.issuer"),
        ({"token_endpoint": "http://10.0.0.1/token"}, "another host"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "write https"),
        ({"jwks_uri": 7}, "Expected `str`"),
    ],
)
def test_what_an_issuer_says_of_itself_has_to_fit(
    issuer: Issuer, described: dict[str, Any], told: str
) -> None:
    issuer.described = described
    try:
        with pytest.raises(errors.UnavailableError, match=told) as refused:
            asyncio.run(metadata_of(issuer))
        assert refused.value.code == errors.ISSUER_UNAVAILABLE
    finally:
        issuer.described = {}


async def metadata_of(issuer: Issuer) -> None:
    provider = Provider(OidcSection(issuer=issuer.issuer, client_id=CLIENT))
    try:
        await provider.metadata()
    finally:
        await provider.close()


def test_an_issuer_that_is_gone_is_asked_now_and_then_and_passwords_go_on(tmp_path: Path) -> None:
    own = Issuer()
    own.stop()
    secret = tmp_path / "client.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    config = CONFIG.format(issuer=own.issuer, client=CLIENT, secret=secret)
    with managed_node(tmp_path, config) as node:
        browser = Browser(node)
        failed = browser.send("GET", "/login/oidc")
        assert (failed.status, failed.code) == (503, errors.ISSUER_UNAVAILABLE)
        assert own.issuer in failed.value["detail"]
        password = browser.send("POST", "/api/v1/login", {"name": "admin", "password": PASSWORD})
        assert (password.status, password.value["method"]) == (200, "password")
        own.start()
        before = own.asked
        assert browser.send("GET", "/login/oidc").status == 503, "a failure counts for some seconds"
        assert own.asked == before
        wait_until(lambda: browser.send("GET", "/login/oidc").status == 302, "the issuer is asked again")
        browser.close()
    own.stop()
