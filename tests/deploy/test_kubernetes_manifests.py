"""The manifests for Kubernetes: valid for the API of several versions, and what they name of each other is there."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from cluster.controller.health.pages import PAGES
from cluster.roster.table import STOP_ORDER
from cluster.supervisor.supervisor import STOP_AFTER_S

if TYPE_CHECKING:
    from pathlib import Path

#: The oldest for which it is meant, and what the schemas end with.
VERSIONS = ("1.29", kubernetes_validate.latest_version())


@pytest.fixture
def manifests(deploy: Path) -> dict[tuple[str, str], Any]:
    text = (deploy / "kubernetes" / "angarium.yaml").read_text(encoding="utf-8")
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


@pytest.fixture
def pod(manifests: dict[tuple[str, str], Any]) -> Any:
    return manifests["StatefulSet", "angarium"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_every_manifest(manifests: dict[tuple[str, str], Any], version: str) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_fault_would_be_found(manifests: dict[tuple[str, str], Any]) -> None:
    manifests["StatefulSet", "angarium"]["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests["StatefulSet", "angarium"], VERSIONS[0], strict=True)


def test_all_select_the_same_pods(manifests: dict[tuple[str, str], Any]) -> None:
    labels = {"app.kubernetes.io/name": "angarium"}
    spec = manifests["StatefulSet", "angarium"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels
    assert manifests["Service", "angarium"]["spec"]["selector"] == labels
    assert manifests["Service", "angarium-nodes"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget", "angarium"]["spec"]["selector"]["matchLabels"] == labels
    affinity = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels


def test_neighbours_find_each_other_before_they_are_ready(manifests: dict[tuple[str, str], Any]) -> None:
    nodes = manifests["Service", "angarium-nodes"]["spec"]
    assert nodes["clusterIP"] == "None"
    assert nodes["publishNotReadyAddresses"] is True
    spec = manifests["StatefulSet", "angarium"]["spec"]
    assert spec["serviceName"] == "angarium-nodes"
    config = manifests["ConfigMap", "angarium"]["data"]["node.toml"]
    for number in range(spec["replicas"]):
        assert f'"tls://angarium-{number}.angarium-nodes:55555"' in config


def test_volumes_ports_and_probes_are_of_what_is_there(
    manifests: dict[tuple[str, str], Any], pod: Any
) -> None:
    (container,) = pod["containers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {
        one["metadata"]["name"]
        for one in manifests["StatefulSet", "angarium"]["spec"]["volumeClaimTemplates"]
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"] for port in container["ports"]}
    probes = {
        name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe["path"] for probe in probes.values()} == set(PAGES)
    assert {probe["port"] for probe in probes.values()} <= ports
    for name in ("angarium", "angarium-nodes"):
        assert {port["targetPort"] for port in manifests["Service", name]["spec"]["ports"]} <= ports


def test_the_service_notices_that_a_pod_stops_before_it_does(
    manifests: dict[tuple[str, str], Any], pod: Any
) -> None:
    health = tomllib.loads(manifests["ConfigMap", "angarium"]["data"]["node.toml"])["health"]
    probe = pod["containers"][0]["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] * 1_000 < health["drain_ms"]


def test_no_secret_is_in_an_environment_or_in_the_manifests(
    manifests: dict[tuple[str, str], Any], pod: Any
) -> None:
    assert not [kind for kind, _ in manifests if kind == "Secret"]
    (container,) = pod["containers"]
    assert "env" not in container
    assert "envFrom" not in container
    (secrets,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets["defaultMode"] & 0o077 == 0


def test_a_pod_may_do_little_and_has_time_to_stop(pod: Any) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["terminationGracePeriodSeconds"] > STOP_AFTER_S * len(STOP_ORDER) + 5
    assert container["resources"]["limits"]["memory"]
