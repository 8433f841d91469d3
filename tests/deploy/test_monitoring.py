"""Alert rules and dashboards: what they ask for exists, and a Prometheus that scrapes nodes answers it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from angarium import blocking
from angarium_server.http.exposition import exposed
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.controller.health.metrics import CLUSTER, NODE, PROCESS, STANDBY
from cluster.data.node_file import read_node_file
from cluster.management.api.object_metrics import TABLES
from cluster.roster.table import ROLES
from router.ground.metrics import LINK, ROUTER, SPOOL
from tests.integration.manual_pair import acts_with, pair_of
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.manual_pair import Host

PARTS = [NODE, PROCESS, ROUTER, SPOOL, CLUSTER, LINK, *(one.metrics for one in ROLES.values() if one.metrics)]
PARTS += [STANDBY, *TABLES]
NAMES = {exposed(part.part, metric)[0] for part in PARTS for metric in part if metric.kind}
LABELS = {"instance", "job", "neighbour", "vpn", "name", "username", "role", "index"} | {
    metric.label for part in PARTS for metric in part if metric.label
}
#: A node alone has neither a neighbour nor what went wrong.
NOT_ALONE = re.compile(
    r"angarium_(cluster_(up|lag|progress|spooled|retry|dead)|link)|_(discards|errors|ended)_total"
)
#: Minutes of a range: Prometheus asks each minute unless it is told otherwise, a rate is of two answers, and one
#: may be missed.
RANGE_MIN = 5
INSTANCES = ("one", "two")
START_S = 30.0
SCRAPER, PASSWORD = "prometheus", "of a test"

pytestmark = pytest.mark.requirement("R261")


def rules(deploy: Path) -> list[dict[str, Any]]:
    text = (deploy / "prometheus" / "angarium.rules.yml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["groups"]
    return list(group["rules"])


def panels(deploy: Path) -> list[dict[str, Any]]:
    files = sorted((deploy / "grafana").glob("*.json"))
    assert files
    return [one for file in files for one in json.loads(file.read_text(encoding="utf-8"))["panels"]]


def queries(deploy: Path) -> list[str]:
    found = [rule["expr"] for rule in rules(deploy)]
    found += [target["expr"] for panel in panels(deploy) for target in panel["targets"]]
    return [query.replace("$instance", ".*") for query in found]


def test_what_rules_and_dashboards_ask_for_is_shown(deploy: Path) -> None:
    asked = {name for query in queries(deploy) for name in re.findall(r"angarium_\w+", query)}
    assert asked <= NAMES
    shown = [target["legendFormat"] for panel in panels(deploy) for target in panel["targets"]]
    shown += [str(rule["annotations"]) for rule in rules(deploy)]
    labels = {label for text in shown for label in re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)}
    assert labels <= LABELS


def test_a_rate_is_of_two_answers_however_seldom_prometheus_asks(deploy: Path) -> None:
    ranges = [found for query in queries(deploy) for found in re.findall(r"\[(\w+)\]", query)]
    assert ranges
    assert [one for one in ranges if not (one.endswith("m") and int(one[:-1]) >= RANGE_MIN)] == []


def test_dashboards_are_such_that_grafana_takes_them(deploy: Path) -> None:
    """There is no Grafana: each has a name of its own, asks a source that is chosen, and room for its panels."""
    uids = []
    for file in sorted((deploy / "grafana").glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        uids.append(board["uid"])
        assert board["title"]
        assert board.get("id") is None, "Grafana numbers them itself"
        assert "__inputs" not in board, "nobody is there to be asked"
        known = {one["name"] for one in board["templating"]["list"]}
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
            assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(panel))) <= known
            x, y, width, height = (panel["gridPos"][name] for name in "xywh")
            cells = {(x + i, y + j) for i in range(width) for j in range(height)}
            assert x + width <= 24
            assert not cells & taken, panel["title"]
            taken |= cells
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len(set(uids)) == len(uids)


def test_dashboards_are_of_what_the_models_of_grafana_have(deploy: Path) -> None:
    """What a model does not know of a dashboard is not in what it writes of it again."""
    from grafana_foundation_sdk.cog import plugins, runtime
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import dashboard, prometheus, units

    plugins.register_default_plugins()
    known = {value for value in vars(units).values() if isinstance(value, str)}
    for file in sorted((deploy / "grafana").glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        model: Any = dashboard.Dashboard.from_json(board)
        assert list(lost(board, json.loads(json.dumps(model, cls=JSONEncoder)), file.name)) == []
        for panel in model.panels:
            assert runtime.panelcfg_config(panel.type_val), f"{panel.title}: no panel {panel.type_val}"
            assert panel.field_config.defaults.unit in known, panel.title
            assert all(isinstance(target, prometheus.Dataquery) for target in panel.targets), panel.title
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
        assert {one["name"] for one in board["templating"]["list"]} <= used


def lost(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    """Give where something of ours is not, or not the same, in what others made of it; they may have more."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            yield from lost(value, theirs.get(name) if isinstance(theirs, dict) else None, f"{where}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, value in enumerate(ours):
            yield from lost(value, theirs[at], f"{where}[{at}]")
    elif ours != theirs:
        yield where


def test_each_rule_says_what_to_do(deploy: Path) -> None:
    for rule in rules(deploy):
        assert rule["alert"].startswith("Angarium")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "action"} <= rule["annotations"].keys()


def test_the_page_on_monitoring_has_the_rules(deploy: Path, root: Path) -> None:
    page = " ".join((root / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8").split())
    for rule in rules(deploy):
        assert f"`{' '.join(rule['expr'].split())}`" in page, rule["alert"]


def _as_two(target: str) -> list[dict[str, Any]]:
    return [{"targets": [target], "labels": {"instance": name}} for name in INSTANCES]


def legends(target: dict[str, Any], series: list[Any]) -> list[str]:
    """Give what Grafana writes below a panel, for each series of a query."""
    text = re.sub(r"\{\{(\w+)\}\}", r"{\1}", target["legendFormat"])
    return [text.format_map(defaultdict(str, one["metric"])) for one in series]


class Prometheus:
    """A Prometheus that scrapes both pages of one node each second, twice: as those of two nodes that have the same.

    And the page of a primary.
    """

    def __init__(self, folder: Path, deploy: Path, health: str, management: str, primary: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        shutil.copy(deploy / "prometheus" / "angarium.rules.yml", folder)
        node = {"job_name": "angarium", "static_configs": _as_two(health)}
        objects = {
            "job_name": "angarium-objects",
            "metrics_path": "/metrics/objects",
            "basic_auth": {"username": SCRAPER, "password": PASSWORD},
            "static_configs": _as_two(management),
        }
        pair = {"job_name": "pair", "static_configs": [{"targets": [primary]}]}
        interval = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        scraped = [node, objects, pair]
        config = {"global": interval, "rule_files": ["angarium.rules.yml"], "scrape_configs": scraped}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        listen = f"--web.listen-address={self.url.removeprefix('http://')}"
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(["prometheus", *options, listen], stdout=self._log, stderr=self._log)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
            return json.loads(answer.read())["data"]

    def query(self, text: str) -> list[Any]:
        return list(self.get(f"/api/v1/query?query={urllib.parse.quote(text)}")["result"])

    def wait_for(self, text: str) -> None:
        """Wait until a query has an answer."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                if self.query(text):
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, f"Prometheus does not answer {text}"
            time.sleep(0.2)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=START_S)
        self._log.close()


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Host]:
    """Give the primary of a pair whose standby has everything."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("needs prometheus and promtool: apt install prometheus")
    with pair_of(tmp_path) as (alpha, beta):
        alpha.up()
        beta.up()
        alpha.run("standby", "promote")
        alpha.wait(acts_with(["alpha", "beta"]), "the primary, with its standby")
        alpha.wait_ready()
        yield alpha


def refuse(url: str) -> None:
    """Ask for what there is not, so that a refusal is counted."""
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{url}/nothing", timeout=5)


@pytest.fixture
def prometheus(tmp_path: Path, deploy: Path, primary: Host) -> Iterator[Prometheus]:
    """Give one with a node that has gateways, a bridge, a webhook, a queue that is leased, and a sink; and a pair."""
    fronts = dict.fromkeys(("http", "management"), "http://127.0.0.1:0") | {"mqtt": "tcp://127.0.0.1:0"}
    with Node(tmp_path / "data", workers=1, **fronts) as node, blocking.connect(node.url) as client:
        with Admin(node.data) as admin:
            admin.call("objects.create", kind="vpn", name="sales", vpn=None)
            open_to_all = {"client_connect_default": "allow"}
            admin.call("objects.update", kind="acl", name="default", vpn="sales", attributes=open_to_all)
            bridges = {"allow_bridge_connections": True}
            admin.call("objects.update", kind="profile", name="default", vpn="sales", attributes=bridges)
            admin.call("objects.create", kind="username", name="default", vpn="sales")
            attributes = {"remote_vpn": "sales", "remote_subscriptions": ["sold/>"]}
            admin.call("objects.create", kind="bridge", name="b", attributes=attributes)
            admin.call("objects.create", kind="queue", name="q", attributes={"owner": "default"})
            attributes = {"queue": "q", "url": "https://example.com"}
            admin.call("objects.create", kind="webhook", name="w", attributes=attributes)
            admin.call("objects.create", kind="topic-endpoint", name="te")
            scraper = {"role": "viewer", "password": PASSWORD}
            admin.call("objects.create", kind="operator", name=SCRAPER, vpn=None, attributes=scraper)
        client.create_queue("read")
        client.reader_group("read", "job", lease_s=3_600)
        client.commit_stages([], "sink", 1)
        for url in (node.http_url, node.management_url):
            refuse(url)
        health, of_primary = (read_node_file(one.data).health for one in (node, primary))
        places = (health, node.management_url, of_primary)
        server = Prometheus(tmp_path, deploy, *(place.removeprefix("http://") for place in places))
        try:
            server.wait_for("angarium_object_sink_batch == 1")
            client.commit_stages([], "sink", 2)
            server.wait_for("angarium_bridge_up == 1 and angarium_bridge_lag_seconds > 0")
            server.wait_for("angarium_webhook_up == 1")
            server.wait_for("rate(angarium_router_messages_in_total[1m])")
            server.wait_for("delta(angarium_object_sink_batch[5m]) > 0")
            server.wait_for("rate(angarium_standby_sent_bytes_total[5m]) and angarium_standby_in_sync == 1")
            yield server
        finally:
            server.close()


def test_a_prometheus_answers_each_query(prometheus: Prometheus, deploy: Path, tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")], check=True)
    for target in prometheus.get("/api/v1/targets")["activeTargets"]:
        login = base64.b64encode(f"{SCRAPER}:{PASSWORD}".encode()).decode()
        request = urllib.request.Request(target["scrapeUrl"], headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, timeout=5) as page:
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=page.read(), capture_output=True, check=False
            )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    for panel in panels(deploy):
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*")
            series = prometheus.query(query)
            assert series or NOT_ALONE.search(query), query
            told = legends(target, series)
            assert len(set(told)) == len(told), f"{panel['title']}: two lines are called alike: {told}"
    found = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in found} == {one["alert"]: "ok" for one in rules(deploy)}
    assert [rule["name"] for rule in found if rule["state"] == "firing"] == ["AngariumPrimaryBegan"]
