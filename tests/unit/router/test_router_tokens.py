"""Logins by token, without a node: what a token says, whose keys there are, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from angarium import errors
from angarium_server.tokens.claims import TOKEN_BYTES_MAX, Grant, grant_of, peek
from angarium_server.tokens.config import TokenIssuer, faults_of
from angarium_server.tokens.keys import KEYS_MAX, load_rows, read_document
from angarium_server.tokens.verification import signed_payload
from router.access.granted import GrantedSessions
from router.access.issuers import WAITING_MAX, Issuers, TokenLogin, UnknownKeys
from router.sessions.session_table import SessionTable
from tests.token_issuer import AUDIENCE, ISSUER, TokenMaker, handmade, jwks, signed_with_public_key

NOW_MS = 1_900_000_000_000
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_MS // 1000 + 60}
KINDS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def issuer(**changed: Any) -> TokenIssuer:
    given = {
        "name": "login",
        "issuer": ISSUER,
        "audience": [AUDIENCE],
        "keys_file": "keys",
        "clock_skew_s": 30,
    }
    return TokenIssuer(**{**given, **changed})


def granted(
    vpn: str = "default", username: str = "", settings: TokenIssuer | None = None, **changed: Any
) -> Grant:
    claims = {name: value for name, value in {**CLAIMS, **changed}.items() if value is not None}
    return grant_of(json.dumps(claims).encode(), settings or issuer(), vpn, username, NOW_MS)


def refused(call: Any, *arguments: Any, **named: Any) -> str:
    """Expect a refusal whose reason the client does not hear, and give it."""
    with pytest.raises(errors.AngariumError) as caught:
        call(*arguments, **named)
    assert caught.value.code in (errors.UNAUTHORIZED, errors.VPN_NOT_ALLOWED)
    return caught.value.detail


# -- claims --------------------------------------------------------------------------------------------------


def test_good_claims_name_a_user_and_an_end() -> None:
    assert granted() == Grant("login", "default", "alice", "", "", NOW_MS + 60_000 + 30_000)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "another"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"angarium": 1}}, "audience"),
        ({"exp": None}, "no end"),
        ({"exp": NOW_MS // 1000 - 31}, "ended"),
        ({"exp": "tomorrow"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"exp": -(1 << 62)}, "no time"),
        ({"nbf": NOW_MS // 1000 + 32}, "future"),
        ({"iat": NOW_MS // 1000 + 32}, "future"),
        ({"nbf": [1]}, "no time"),
        ({"sub": None}, "names no username"),
        ({"sub": 7}, "names no username"),
        ({"sub": ""}, "names no username"),
        ({"sub": "#bridge"}, "names no username"),
        ({"sub": "a b"}, "names no username"),
        ({"sub": "a*"}, "names no username"),
        ({"sub": "x" * 190}, "names no username"),
    ],
)
def test_claims_that_do_not_count_are_refused(changed: dict[str, Any], told: str) -> None:
    assert told in refused(granted, **changed)


def test_clocks_may_differ_by_the_skew_and_no_more() -> None:
    now = NOW_MS // 1000
    assert granted(exp=now - 29).ends_ms == NOW_MS + 1_000
    assert granted(nbf=now + 30, iat=now + 30)
    refused(granted, exp=now - 30)
    refused(granted, exp=now, settings=issuer(clock_skew_s=0))


def test_an_audience_is_one_of_several() -> None:
    assert granted(aud=["x", AUDIENCE])
    assert granted(aud="second", settings=issuer(audience=["first", "second"]))


def test_a_username_that_the_client_says_must_be_that_of_the_token() -> None:
    assert granted(username="alice").username == "alice"
    assert "names 'alice'" in refused(granted, username="bob")


def test_claims_choose_username_message_vpn_and_profiles() -> None:
    settings = issuer(
        username_claim="preferred_username",
        vpn_claim="angarium.vpn",
        client_profile_claim="profile",
        acl_profile_claim="https://x.example/acl",
        vpns=["orders", "sales"],
    )
    claims: dict[str, Any] = {"preferred_username": "ann", "angarium": {"vpn": "orders"}, "profile": "fast"}
    claims["https://x.example/acl"] = "readers"
    assert granted(settings=settings, **claims)[:5] == ("login", "orders", "ann", "fast", "readers")
    assert granted("orders", settings=settings, **claims).vpn == "orders"
    refused(granted, "sales", settings=settings, **claims)
    assert (
        granted(settings=settings, preferred_username="ann", angarium={"vpn": ["orders"]}).acl_profile == ""
    )
    several: dict[str, Any] = {"preferred_username": "ann", "angarium": {"vpn": ["orders", "sales"]}}
    assert granted("sales", settings=settings, **several).vpn == "sales"
    refused(granted, settings=settings, **several)
    for wrong in ([], "", 7, None, ["orders", 7], "secret"):
        refused(granted, settings=settings, preferred_username="ann", angarium={"vpn": wrong})
    refused(granted, settings=settings, **{**claims, "profile": ["fast"]})


def test_tokens_are_for_the_message_vpns_of_their_issuer() -> None:
    assert granted("orders", settings=issuer(vpns=["orders"])).vpn == "orders"
    assert granted("any", settings=issuer(vpns=["*"])).vpn == "any"
    refused(granted, "orders")


# -- what a token says before it is believed -----------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "a.b",
        "a.b.c.d",
        "...",
        "\x00.\x00.\x00",
        "é.é.é",
        "e30.e30.",
        "W10.W10.W10",
        handmade({"alg": "ES256"}, {"sub": "a"}),
        handmade({"alg": 7}, {"iss": ISSUER}),
        handmade({"alg": "ES256", "kid": 7}, {"iss": ISSUER}),
        handmade({"alg": "ES256", "crit": ["b64"]}, {"iss": ISSUER}),
        "A" * TOKEN_BYTES_MAX + ".b.c",
        base64.urlsafe_b64encode(b"[" * 9_000).decode().rstrip("=") + ".e30.e30",
    ],
)
def test_what_is_no_token_is_refused_and_nothing_else_happens(token: str) -> None:
    refused(peek, token, {ISSUER: "sub"})


def test_a_token_is_read_without_being_believed() -> None:
    found = peek(TokenMaker("EdDSA").token(sub="x" * 100), {ISSUER: "sub"})
    assert (found.algorithm, found.key_id, found.issuer) == ("EdDSA", "EdDSA-0", ISSUER)
    assert found.username == "x" * 64


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "HS512", "RS256", ""])
def test_algorithms_that_are_not_allowed_are_refused_before_any_arithmetic(algorithm: str) -> None:
    issuers = Issuers([issuer(algorithms=["ES256"])])
    assert "not allowed" in refused(issuers.peek, handmade({"alg": algorithm}, CLAIMS))


def test_a_token_of_nobody_whom_we_trust_is_refused() -> None:
    refused(Issuers([]).peek, TokenMaker().token())
    assert "not configured" in refused(Issuers([issuer(issuer="other")]).peek, TokenMaker().token())


# -- keys and signatures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_algorithm_signs_and_another_key_does_not(kind: str) -> None:
    maker, other = TokenMaker(kind), TokenMaker(kind, 1)
    token = maker.token()
    for document in (jwks(maker), maker.pem):
        keys = load_rows(read_document(document))
        assert json.loads(signed_payload(token, kind, keys) or b"{}")["sub"] == "alice"
    assert signed_payload(token, kind, load_rows(read_document(other.pem))) is None
    head, claims, signature = token.split(".")
    forged = base64.urlsafe_b64encode(json.dumps({**CLAIMS, "sub": "root"}).encode()).decode().rstrip("=")
    assert signed_payload(f"{head}.{forged}.{signature}", kind, keys) is None
    assert signed_payload(f"{head}.{claims}.", kind, keys) is None


def test_the_public_key_is_no_secret_to_sign_with() -> None:
    maker = TokenMaker("RS256")
    token = signed_with_public_key(maker, maker.claims())
    issuers = Issuers([issuer(algorithms=["RS256"])])
    refused(issuers.peek, token)
    # And if it came so far: a key of RSA does not verify an HMAC, nor one of another kind than the algorithm.
    keys = load_rows(read_document(maker.pem))
    assert signed_payload(token, "RS256", keys) is None
    assert signed_payload(token, "HS256", keys) is None
    assert not keys[0].fits("ES256")
    assert not keys[0].fits("EdDSA")


def test_the_key_is_the_one_that_the_token_names() -> None:
    old, new, stranger = TokenMaker("ES256"), TokenMaker("ES256", 1), TokenMaker("ES256", 2)
    issuers = Issuers([issuer(algorithms=["ES256", "RS256"])])
    rows = read_document(jwks(old, new, TokenMaker("RS256")))
    issuers.put_keys({"login": load_rows(rows), "unknown": []})
    found, peeked = issuers.peek(new.token())
    (key,) = issuers.keys_for(found, peeked)
    assert key.id == new.key_id
    assert issuers.keys_for(*issuers.peek(stranger.token())) == ()
    nameless = TokenMaker("ES256", key_id=None)
    assert [one.id for one in issuers.keys_for(*issuers.peek(nameless.token()))] == ["ES256-0", "ES256-1"]
    issuers.put_keys({"login": load_rows(read_document(new.pem))})
    assert len(issuers.keys_for(*issuers.peek(new.token()))) == 1, "keys of a file in PEM have no names"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (b"", "neither"),
        (b"{}", "neither"),
        (b'{"keys": 1}', "neither"),
        (b'{"keys": []}', "no public key"),
        (b'{"keys": [1, null, {"kty": "oct", "k": "c2VjcmV0"}, {"kty": "RSA"}]}', "no public key"),
        (b"[" * 5_000, "neither"),
        (b" " * 300_000, "bytes"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot be read"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "only public keys"),
        (b"-----BEGIN nothing", "no public key"),
    ],
)
def test_a_document_without_a_usable_key_is_refused(document: bytes, told: str) -> None:
    with pytest.raises(errors.AngariumError, match=told) as caught:
        read_document(document)
    assert caught.value.code == errors.INVALID_CONFIGURATION


def test_keys_that_are_weak_or_for_something_else_are_left_out() -> None:
    good = TokenMaker("RS256").jwk
    encryption = {**TokenMaker("RS256", 1).jwk, "use": "enc"}
    document = json.dumps({"keys": [encryption, good]}).encode()
    assert [row[0] for row in read_document(document)] == ["RS256-0"]
    with pytest.raises(errors.AngariumError):
        read_document(TokenMaker("weak").pem)
    many = [{**good, "kid": f"{number}"} for number in range(KEYS_MAX + 1)]
    with pytest.raises(errors.AngariumError, match="limit"):
        read_document(json.dumps({"keys": many}).encode())


def test_a_signature_that_is_wrong_grants_nothing() -> None:
    issuers = Issuers([issuer()])
    hello = type("Hello", (), {"vpn": "default", "username": ""})()
    login = TokenLogin(b"1", hello, "", issuer(), "ES256", ())
    assert "has not signed" in refused(issuers.grant, login, None, NOW_MS)
    assert issuers.grant(login, json.dumps(CLAIMS).encode(), NOW_MS).username == "alice"


def test_two_issuers_have_two_names() -> None:
    assert faults_of([issuer(), issuer(name="other", issuer="x")]) == []
    assert len(faults_of([issuer(), issuer()])) == 2
    assert "keys_file" in faults_of([issuer(keys_file="")])[0]


# -- sessions that are here by a token -----------------------------------------------------------------------


class FakeSession:
    """What is looked at of a session."""

    def __init__(self, number: int, ends_ms: int) -> None:
        self.number = number
        self.closed = False
        self.grant: Grant | None = granted()._replace(ends_ms=ends_ms)


@pytest.mark.requirement("R225")
def test_sessions_end_with_their_tokens_and_not_before() -> None:
    ended: list[tuple[int, int]] = []
    table = SessionTable()
    table.close = lambda session, error, _: ended.append((session.number, error.code))
    sessions = GrantedSessions(table)
    some = [FakeSession(number, NOW_MS + number * 1_000) for number in range(4)]
    for one in some:
        sessions.entered(one)  # type: ignore[arg-type]
    some[2].grant = granted()._replace(ends_ms=NOW_MS + 60_000)  # it was renewed
    some[3].closed = True
    sessions.sweep(NOW_MS + 999, 1.0)
    assert ended == [(0, errors.TOKEN_EXPIRED)]
    sessions.sweep(NOW_MS + 5_000, 2.0)
    assert ended == [(0, errors.TOKEN_EXPIRED), (1, errors.TOKEN_EXPIRED)]
    sessions.validate()
    sessions.sweep(NOW_MS + 60_000, 3.0)
    sessions.sweep(NOW_MS + 60_000, 4.0)
    assert ended[2:] == [(2, errors.TOKEN_EXPIRED)], "each once"


# -- keys that are not known ---------------------------------------------------------------------------------


class FakeAsks:
    """Questions to the controller, answered when a test says so."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def ask(self, operation: str, arguments: dict[str, Any], done: Any) -> None:
        assert (operation, arguments) == ("issuer.refresh", {"name": "login"})
        self.done.append(done)


def test_logins_with_an_unknown_key_wait_for_one_question_and_strangers_do_not_repeat_it() -> None:
    asks, known = FakeAsks(), []
    waiting = UnknownKeys(asks, lambda number, _: known.append(number))  # type: ignore[arg-type]
    far = issuer(keys_file="", jwks_url="https://login.example/keys", refresh_min_s=30)
    assert not waiting.may_wait(issuer(), 0.0), "a file has no more keys than it has"
    for number in range(WAITING_MAX):
        assert waiting.may_wait(far, 0.0)
        waiting.wait(far, number)
    assert len(asks.done) == 1
    with pytest.raises(errors.RateLimitError):
        waiting.may_wait(far, 0.0)
    asks.done[0](False, None, 8.0)
    assert known == list(range(WAITING_MAX)), "each goes on, whatever the answer was"
    assert not waiting.may_wait(far, 37.9)
    assert waiting.may_wait(far, 38.0)
    waiting.wait(far, 1_000)
    assert len(asks.done) == 2
