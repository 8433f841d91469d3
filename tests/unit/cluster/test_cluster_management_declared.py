"""Objects of a text that comes over HTTP: what it declares, and that it leads to no file of this host."""

from __future__ import annotations

import pytest

from angarium import errors
from cluster.management.api.declared import objects_of

TEXT = """
[router]
tls_cert_file = "of-the-node.pem"

[vpn.default.queue.orders]
max_ttl_s = 60

[[webhooks]]
name = "hook"
queue = "orders"
url = "https://example.com/"
secret_file = "/etc/angarium/hook"
"""


def test_a_text_is_the_objects_that_it_declares() -> None:
    found = objects_of({"text": TEXT})["objects"]
    assert [(kind, vpn, name) for kind, vpn, name, _ in found] == [
        ("vpn", "", "default"),
        ("queue", "default", "orders"),
        ("webhook", "default", "hook"),
    ]
    assert found[1][3] == {"max_ttl_s": 60}
    assert found[2][3]["secret_file"] == "/etc/angarium/hook"


@pytest.mark.parametrize(
    "text",
    [
        '[vpn.default.username.ann]\npassword_file = "/etc/shadow"',
        '[[operators]]\nname = "ann"\npassword_file = "/etc/shadow"',
        '[[bridges]]\nname = "b"\nca_file = "/etc/shadow"',
        '[[webhooks]]\nname = "w"\nqueue = "q"\nurl = "https://example.com"\nsecret_file = "relative"',
        "[vpn.default.queue.orders]\nmax_ttl_s = 'long'",
        "no toml at all",
        "a = " + "[" * 100_000,
    ],
)
def test_a_file_of_this_host_and_a_fault_are_refused(text: str) -> None:
    with pytest.raises(errors.AngariumError) as refused:
        objects_of({"text": text})
    assert refused.value.code == errors.INVALID_CONFIGURATION
    assert "root:" not in str(refused.value)


@pytest.mark.parametrize("body", [{}, {"text": 7}, {"text": "", "file": "/etc/passwd"}])
def test_what_has_no_text_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        objects_of(body)
