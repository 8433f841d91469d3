"""The files of a pair of hosts: configurations that a node takes, and manifests that Kubernetes takes."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from cluster.configuration.config import check_config
from cluster.controller.health.pages import PAGES
from cluster.security.authority import create_cluster

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("alpha", "beta")
#: What is of one host; all else is the same on both.
OWN = {
    "standby.host",
    "standby.listen",
    "standby.peer",
    "router.listen",
    "router.tls_cert_file",
    "router.tls_key_file",
}


def make_keys(directory: Path, names: tuple[str, ...]) -> None:
    create_cluster(directory, {name: [] for name in names}, 30)
    for name in names:
        for kind in ("etcd-client", "node"):
            for end in ("pem", "key"):
                (directory / f"{kind}.{end}").write_bytes((directory / f"{name}.{end}").read_bytes())
                (directory / f"{kind}.{end}").chmod(0o600)
    (directory / "etcd-authority.pem").write_bytes((directory / "authority.pem").read_bytes())
    (directory / "app.password").write_text("not for production\n")
    (directory / "app.password").chmod(0o600)


def test_two_hosts_are_configured_alike(deploy: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", HOSTS)
    found = []
    for host in HOSTS:
        text = (deploy / "pair" / f"{host}.toml").read_text(encoding="utf-8")
        (tmp_path / f"{host}.toml").write_text(text)
        assert check_config(tmp_path / f"{host}.toml") == []
        tables = tomllib.loads(text)
        found.append(
            {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
        )
    one, other = found
    assert {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} == OWN
    assert one["standby.peer"] == other["standby.listen"]
    assert other["standby.peer"] == one["standby.listen"]


@pytest.fixture
def manifests(deploy: Path) -> dict[str, Any]:
    text = (deploy / "kubernetes" / "pair.yaml").read_text(encoding="utf-8")
    return {f"{one['kind']} {one['metadata']['name']}": one for one in yaml.safe_load_all(text)}


def test_kubernetes_takes_every_manifest(manifests: dict[str, Any]) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, "1.29", strict=True)


def test_each_pod_finds_its_file_its_lease_and_the_other_one(
    manifests: dict[str, Any], tmp_path: Path
) -> None:
    make_keys(tmp_path, HOSTS)
    files = manifests["ConfigMap angarium-pair"]["data"]
    spec = manifests["StatefulSet angarium-pair"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    names = [f"angarium-pair-{number}" for number in range(spec["replicas"])]
    assert sorted(files) == [f"{name}.toml" for name in names]
    for name, other in zip(names, reversed(names), strict=True):
        text = files[f"{name}.toml"].replace("/etc/angarium/secrets", str(tmp_path))
        (tmp_path / f"{name}.toml").write_text(text)
        assert check_config(tmp_path / f"{name}.toml") == []
        assert tomllib.loads(text)["standby"]["peer"] == f"tls://{other}.{spec['serviceName']}:55560"
    assert container["args"][-1] == "/etc/angarium/hosts/$(POD).toml"
    assert pod["serviceAccountName"] == manifests["ServiceAccount angarium-pair"]["metadata"]["name"]
    assert {container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")} == {*PAGES}
