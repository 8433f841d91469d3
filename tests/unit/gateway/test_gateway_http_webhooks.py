"""What decides about webhooks: verdicts, delays, signatures, and which addresses may be reached."""

from __future__ import annotations

import base64
from email.utils import formatdate
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.webhooks.addresses import may_name, may_reach
from gateway.http.webhooks.attempts import Answer, Rules, Verdict, asked_for, delay_of, verdict_of
from gateway.http.webhooks.signing import secrets_of, signed_headers

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (200, Verdict.ACCEPT),
        (204, Verdict.ACCEPT),
        (299, Verdict.ACCEPT),
        (199, Verdict.RETRY),
        (302, Verdict.RETRY),
        (400, Verdict.RETRY),
        (410, Verdict.REJECT),
        (503, Verdict.RETRY),
        (None, Verdict.RETRY),
    ],
)
def test_2xx_accepts_gone_rejects_and_all_else_is_tried_again(code: int | None, verdict: Verdict) -> None:
    assert verdict_of(Rules(), Answer(code)) is verdict


def test_configured_codes_are_permanent() -> None:
    rules = Rules(permanent=frozenset({410, 422}))
    assert verdict_of(rules, Answer(422)) is Verdict.REJECT
    assert verdict_of(rules, Answer(400)) is Verdict.RETRY


def test_the_limit_of_the_delay_doubles_up_to_the_longest() -> None:
    rules = Rules(first_delay_s=1.0, longest_delay_s=10.0)
    assert [delay_of(rules, n, Answer(503), NOW, 1.0) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert [delay_of(rules, n, Answer(503), NOW, 0.0) for n in range(1, 4)] == [0.5, 1, 2]
    assert delay_of(rules, 1_000_000, Answer(503), NOW, 1.0) == 10


def test_retry_after_makes_the_delay_longer_and_never_shorter() -> None:
    rules = Rules(first_delay_s=4.0, longest_delay_s=60.0)
    assert delay_of(rules, 1, Answer(429, "30"), NOW, 1.0) == 30
    assert delay_of(rules, 1, Answer(429, "0"), NOW, 1.0) == 4
    assert delay_of(rules, 1, Answer(429, "9" * 400), NOW, 1.0) == 60
    assert delay_of(rules, 1, Answer(429, formatdate(NOW + 20, usegmt=True)), NOW, 1.0) == 20


@pytest.mark.parametrize(
    "text", ["", "-5", "soon", "1.5", "²", "nan", "inf", "Mon, 99 Foo 2026 00:00:00 GMT"]
)
def test_a_retry_after_that_is_none_asks_for_nothing(text: str) -> None:
    assert asked_for(text, NOW) == 0


@given(st.integers(1, 10_000), st.text(max_size=40), st.floats(0, 1))
def test_a_delay_is_always_within_its_bounds(failures: int, retry_after: str, chance: float) -> None:
    rules = Rules(first_delay_s=0.5, longest_delay_s=60.0)
    assert 0.25 <= delay_of(rules, failures, Answer(503, retry_after), NOW, chance) <= 60


def test_the_signature_is_that_of_the_example_of_standard_webhooks() -> None:
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "2002:7f00:1::",
        "2001:0:7f00:1::1",
        "fec0::1",
        "100::1",
        "3fff::1",
        "5f00::1",
        "192.0.0.8",
    ],
)
def test_what_is_not_public_is_reached_only_if_it_is_allowed(address: str) -> None:
    assert not may_reach(address, [])
    assert may_reach(address, [ip_network("0.0.0.0/0"), ip_network("::/0")])


def test_public_addresses_are_reached_and_a_network_allows_no_other() -> None:
    assert may_reach("8.8.8.8", [])
    assert may_reach("2606:4700::1111", [])
    assert may_reach("::ffff:127.0.0.1", [ip_network("127.0.0.0/8")])
    assert not may_reach("10.0.0.1", [ip_network("127.0.0.0/8")])


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "10.0.0.1"]
)
def test_a_url_names_no_address_that_is_not_reached(host: str) -> None:
    assert not may_name(host, [])
    assert may_name(host, [ip_network("127.0.0.0/8"), ip_network("10.0.0.1"), ip_network("::1")])


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "8.8.8.8", "2606:4700::1111"])
def test_a_url_names_anything_else_for_a_name_is_judged_by_what_it_stands_for(host: str) -> None:
    assert may_name(host, [])


def test_two_secrets_sign_both_so_that_receivers_can_change_to_the_next_one() -> None:
    first, second = b"1" * 24, b"2" * 24
    text = f"whsec_{base64.b64encode(first).decode()}\n\n  {base64.b64encode(second).decode()}\n"
    assert secrets_of(text) == [first, second]
    both = signed_headers([first, second], "id", NOW, b"body")["webhook-signature"]
    alone = [signed_headers([one], "id", NOW, b"body")["webhook-signature"] for one in (first, second)]
    assert both == " ".join(alone)
    assert "webhook-signature" not in signed_headers([], "id", NOW, b"body")


def test_the_last_attempt_rejects() -> None:
    rules = Rules(attempts_max=3)
    verdicts = [verdict_of(rules, Answer(500), attempts) for attempts in (1, 2, 3)]
    assert verdicts == [Verdict.RETRY, Verdict.RETRY, Verdict.REJECT]
    assert verdict_of(rules, Answer(200), 3) is Verdict.ACCEPT
