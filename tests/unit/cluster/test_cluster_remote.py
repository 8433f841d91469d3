"""Who may administer a node from another host, and what the configuration must say for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.configuration.admin import AdminSection, admin_files, faults_of
from cluster.controller.remote import operators as module
from cluster.controller.remote.operators import Operators
from router.ground.config import RouterConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPLETE: dict[str, Any] = {
    "listen": ["tls://127.0.0.1:0"],
    "tls_client_ca_file": "ca.pem",
    "operators": ["anna"],
}


@pytest.fixture
def operators() -> Iterator[Operators]:
    made = Operators()
    yield made
    made.validate()


def test_refusals_are_counted_and_told_once_a_minute(operators: Operators) -> None:
    first = operators.refused("no certificate", 100.0)
    assert first is not None
    assert (first["event"], first["severity"], first["count"]) == ("SYSTEM_OPERATOR_REFUSED", "warning", 1)
    assert "no certificate" in first["text"]
    assert [operators.refused("again", 100.0 + second) for second in range(1, 60)] == [None] * 59
    later = operators.refused("the last", 160.0)
    assert later is not None
    assert later["count"] == 60
    assert "60 connections" in later["text"]
    assert "the last" in later["text"]
    assert operators.refused_total == 61


def test_the_connections_of_a_network_have_a_rate(operators: Operators) -> None:
    taken = [operators.may_come("10.0.0.1", 5.0) for _ in range(module.CONNECT_BURST + 5)]
    assert taken == [True] * module.CONNECT_BURST + [False] * 5
    assert operators.may_come("10.0.0.2", 5.0)
    assert operators.may_come("10.0.0.1", 6.0)


def test_networks_without_end_take_no_memory_without_end(operators: Operators) -> None:
    for number in range(module.NETWORKS_MAX + 10):
        operators.may_come(f"{number}", 5.0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"listen": ["tcp://127.0.0.1:0"]}, "write tls://HOST:PORT"),
        ({"listen": ["ipc:///tmp/a"]}, "write tls://HOST:PORT"),
        ({"listen": ["127.0.0.1:0"]}, "is no address"),
        ({"tls_client_ca_file": ""}, "admin.tls_client_ca_file"),
        ({}, "it needs a certificate"),
        ({"tls_cert_file": "/none.pem"}, "admin.tls_cert_file: /none.pem"),
    ],
)
def test_an_incomplete_section_is_told_of_in_one_sentence(changed: dict[str, Any], told: str) -> None:
    router = RouterConfig(tls_cert_file="" if not changed else "/router.pem")
    (fault,) = faults_of(AdminSection(**{**COMPLETE, **changed}), router)
    assert told in fault


def test_without_an_address_nothing_is_needed() -> None:
    assert faults_of(AdminSection(), RouterConfig()) == []


def test_the_certificate_is_that_of_the_router_unless_it_has_its_own() -> None:
    router = RouterConfig(tls_cert_file="r.pem", tls_key_file="r.key", tls_client_ca_file="clients.pem")
    found = admin_files(AdminSection(**COMPLETE), router)
    assert found == ("r.pem", "r.key", "ca.pem", "required")
    own = admin_files(AdminSection(**COMPLETE, tls_cert_file="a.pem"), router)
    assert own == ("a.pem", "", "ca.pem", "required")
