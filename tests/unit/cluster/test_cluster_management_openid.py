"""One login by OpenID Connect, without an issuer: what a browser brings back, and when it counts."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from angarium import errors
from cluster.configuration.management import ManagementSection, OidcSection, oidc_faults_of
from cluster.management.openid.sign_on import LOGIN_S, SEEN_MAX, SignOn

ISSUER = "https://login.example/realms/ops"
BACK = "https://broker.example/login/oidc/callback"
SECTION = OidcSection(issuer=ISSUER, client_id="angarium", scopes=["openid", "email"])


def code_of(call: Any) -> str:
    with pytest.raises(errors.UnauthorizedError) as refused:
        call()
    return refused.value.detail


def test_a_browser_is_sent_away_with_what_its_answer_is_compared_with() -> None:
    sign_on = SignOn(SECTION, BACK)
    cookie, begun = sign_on.begin(0.0)
    place = urlsplit(sign_on.address("https://login.example/authorize", begun))
    asked = {name: values[0] for name, values in parse_qs(place.query).items()}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=")
    assert asked == {
        "response_type": "code",
        "client_id": "angarium",
        "redirect_uri": BACK,
        "scope": "openid email",
        "state": begun.state,
        "nonce": begun.nonce,
        "code_challenge": challenge.decode(),
        "code_challenge_method": "S256",
    }
    assert begun.verifier not in place.query
    returned = sign_on.finish(
        cookie, {"state": [begun.state], "code": ["c"], "session_state": ["x", "y"]}, 1.0
    )
    assert returned == ("c", begun)
    assert len({begun.state, begun.nonce, begun.verifier, sign_on.begin(0.0)[1].state}) == 4


def test_a_login_takes_its_time_and_no_longer() -> None:
    sign_on = SignOn(SECTION, BACK)
    cookie, begun = sign_on.begin(0.0)
    answer = {"state": [begun.state], "code": ["c"]}
    assert "minutes ago" in code_of(lambda: sign_on.finish(cookie, answer, LOGIN_S + 1))
    assert sign_on.finish(cookie, answer, LOGIN_S).code == "c"
    assert "come before" in code_of(lambda: sign_on.finish(cookie, answer, LOGIN_S))


def test_a_login_of_another_process_is_not_known() -> None:
    cookie, begun = SignOn(SECTION, BACK).begin(0.0)
    answer = {"state": [begun.state], "code": ["c"]}
    assert "has not begun" in code_of(lambda: SignOn(SECTION, BACK).finish(cookie, answer, 0.0))
    for other in ("", ".", "a.b", "\udc80.x", cookie + "x", cookie.partition(".")[0], "é." * 3):
        assert "has not begun" in code_of(
            lambda other=other: SignOn(SECTION, BACK).finish(other, answer, 0.0)
        )


def test_what_is_there_twice_is_refused() -> None:
    sign_on = SignOn(SECTION, BACK)
    cookie, begun = sign_on.begin(0.0)
    with pytest.raises(errors.InvalidRequestError, match="state is there 2 times"):
        sign_on.finish(cookie, {"state": [begun.state, begun.state], "code": ["c"]}, 0.0)


def test_so_many_answers_are_remembered_and_those_whose_time_is_over_are_not() -> None:
    sign_on = SignOn(SECTION, BACK)
    for number in range(SEEN_MAX + 10):
        cookie, begun = sign_on.begin(0.0)
        sign_on.finish(cookie, {"state": [begun.state], "code": [str(number)]}, 0.0)
    assert len(sign_on._seen) == SEEN_MAX
    cookie, begun = sign_on.begin(2 * LOGIN_S)
    sign_on.finish(cookie, {"state": [begun.state], "code": ["c"]}, 2 * LOGIN_S)
    assert len(sign_on._seen) == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"azp": "angarium"}, ""),
        ({"aud": ["angarium", "other"], "azp": "angarium"}, ""),
        ({"nonce": "other"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"nonce": 7}, "nonce"),
        ({"aud": ["angarium", "other"]}, "azp"),
        ({"azp": "other"}, "azp"),
        ({"azp": 7}, "azp"),
    ],
)
def test_a_token_is_of_this_login_and_for_this_client(changed: dict[str, Any], told: str) -> None:
    sign_on = SignOn(SECTION, BACK)
    _, begun = sign_on.begin(0.0)
    claims = {"aud": "angarium", "nonce": begun.nonce, **changed}
    if told:
        assert told in code_of(lambda: sign_on.check(claims, begun))
    else:
        sign_on.check(claims, begun)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, []),
        ({"issuer": ""}, ["oidc.issuer: it is missing"]),
        ({"issuer": "", "client_id": ""}, []),
        ({"issuer": "http://login.example"}, ["oidc.issuer: login.example is another host"]),
        ({"client_id": ""}, ["oidc.client_id: it is missing"]),
        ({"scopes": ["email"]}, ["oidc.scopes: openid is missing"]),
        ({"ca_file": "none.pem"}, ["oidc.ca_file: none.pem"]),
    ],
)
def test_faults_of_the_section_are_told(changed: dict[str, Any], told: list[str]) -> None:
    section = OidcSection(**{"issuer": ISSUER, "client_id": "angarium", **changed})
    faults = oidc_faults_of(section, ManagementSection(public_url="https://broker.example"))
    assert [fault[: len(start)] for fault, start in zip(faults, told, strict=True)] == told
    missing = oidc_faults_of(SECTION, ManagementSection())
    assert [fault for fault in missing if "management.public_url" in fault] == missing
