"""The section [standby]: each fault is a sentence that names the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.configuration.standby import StandbySection, faults_of
from tests.integration.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

WAY: dict[str, Any] = {"listen": "tls://0.0.0.0:55600", "peer": "tls://10.0.0.2:55600"}
ETCD: dict[str, Any] = {"store": "etcd", "endpoints": ["https://10.0.0.1:2379"], **WAY}
KUBERNETES: dict[str, Any] = {"store": "kubernetes", **WAY}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"store": "manual", "required": True, **WAY},
        ETCD,
        {
            "store": "etcd",
            "endpoints": ["http://127.0.0.1:2379", "http://[::1]:2379/"],
            "prefix": "a/b",
            **WAY,
        },
        {**ETCD, "username": "u", "password_file": "/p"},
        KUBERNETES,
        {**KUBERNETES, "endpoints": ["https://[fd00::1]:6443"], "namespace": "prod", "token_file": "/t"},
    ],
)
def test_what_can_be_has_no_fault(given: dict[str, Any]) -> None:
    assert faults_of(StandbySection(**given), "orders") == []


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({"store": "etcd", **WAY}, ["standby.endpoints: name the members of etcd, https://HOST:PORT"]),
        (
            {"store": "etcd", "endpoints": ["http://10.0.0.1:2379"], **WAY},
            [
                "standby.endpoints: http://10.0.0.1:2379: others can read and change what goes there: write https://"
            ],
        ),
        (
            {
                "store": "etcd",
                "endpoints": ["10.0.0.1:2379", "https://h", "https://h:1/v3", "https://h:99999"],
                **WAY,
            },
            [
                f"standby.endpoints: '{url}' is no address: write https://HOST:PORT"
                for url in ("10.0.0.1:2379", "https://h", "https://h:1/v3", "https://h:99999")
            ],
        ),
        (
            {"store": "etcd", "endpoints": ["https://u:secret@h:2379"], **WAY},
            [
                "standby.endpoints: a password does not belong into this file: write standby.username and"
                " password_file"
            ],
        ),
        (
            {**ETCD, "username": "u"},
            ["standby.username and password_file go together: write both, or none"],
        ),
        ({**ETCD, "key_file": "/k"}, ["standby.key_file: it belongs to a cert_file: write both, or none"]),
        ({**ETCD, "prefix": "a//b"}, ["standby.prefix = 'a//b': write NAME or NAME/NAME"]),
        (
            {**KUBERNETES, "prefix": "Angarium"},
            [
                "standby.prefix = 'Angarium': as a beginning of the name of a Lease it has lower case letters, digits,"
                " - and . only"
            ],
        ),
        (
            {"store": "manual", "endpoints": ["https://h:1"], "token_file": "/t", **WAY},
            [
                "standby.endpoints: store = 'manual' does not use it: leave it out",
                "standby.token_file: store = 'manual' does not use it: leave it out",
            ],
        ),
        (
            {**KUBERNETES, "username": "u", "password_file": "/p"},
            [
                "standby.username: store = 'kubernetes' does not use it: leave it out",
                "standby.password_file: store = 'kubernetes' does not use it: leave it out",
            ],
        ),
    ],
)
def test_each_fault_names_its_key_and_tells_no_secret(given: dict[str, Any], faults: list[str]) -> None:
    assert faults_of(StandbySection(**given), "orders") == faults


def test_files_for_tls_are_read_and_a_key_is_for_nobody_else(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("client")
    given: dict[str, Any] = {
        "ca_file": str(authority.cert),
        "cert_file": str(pair.cert),
        "key_file": str(pair.key),
    }
    assert faults_of(StandbySection(**ETCD, **given), "orders") == []
    pair.key.chmod(0o644)
    (fault,) = faults_of(StandbySection(**ETCD, **given), "orders")
    assert fault.startswith(f"standby.key_file: {pair.key} has mode 0644")
    (fault,) = faults_of(StandbySection(**ETCD, ca_file=str(tmp_path / "none")), "orders")
    assert "cannot be used: No such file" in fault


def test_a_node_in_kubernetes_has_a_name_that_a_lease_can_have() -> None:
    (fault,) = faults_of(StandbySection(**KUBERNETES), "Orders_1")
    assert fault.startswith("node.name = 'Orders_1': the Lease is named after it")
    assert faults_of(StandbySection(**ETCD), "Orders_1") == []
