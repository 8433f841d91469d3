"""The page of metrics: readable by Prometheus, and named as docs/metrics.md names them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from angarium_server.frames.metrics import Metrics
from angarium_server.http.exposition import CONTENT_TYPE
from cluster.bridge.role import BRIDGE
from cluster.controller.health.checks import examine
from cluster.controller.health.http import Request
from cluster.controller.health.metrics import Sample, metrics
from cluster.controller.health.pages import METRICS, page
from cluster.controller.switchboard import effects
from cluster.roles.role import Role
from tests.unit.cluster.controller_world import World

LINE = re.compile(r'angarium_[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})? -?[0-9.e+-]+')
NODE = {
    "node": "n",
    "phase": "running",
    "workers": 1,
    "uptime_s": 12.5,
    "processes": [
        {"role": "router", "index": 0, "pid": 7, "state": "ready", "restarts": 2},
        {"role": "worker", "index": 0, "pid": 0, "state": "restarting", "restarts": 1},
    ],
}
CLUSTER = {
    "topology_issues": 2,
    "nodes": 3,
    "nodes_up": 1,
    "links": {"b": {"up": False, "lag_ms": None, "dead_messages": 4}},
}
STATS: dict[str, Any] = {
    "sessions": 3,
    "messages_in": 1_000,
    "discards": {"no-local": 4},
    "errors": {"40101": 5},
    "spool": {"messages": 6, "acks": 7, "homes_ready": 1, "recovered": 1},
    "links": [
        {
            "name": 'b"\n',
            "vpn": "default",
            "synchronised": True,
            "messages_out": 8,
            "address": "x",
            "discards": {"discard.transmit-congestion": 9},
        }
    ],
}


BRIDGES = [
    Sample(
        BRIDGE,
        {"name": "b", "vpn": "sales"},
        {
            "state": "up",
            "error": "",
            "messages": 10,
            "queued_messages": None,
            "under_way": 11,
            "dropped": {"visited": 12},
            "refused": {"50310": 13},
        },
    ),
    Sample(BRIDGE, {"name": "gone", "vpn": "sales"}, {}),
]


def lines(stats: dict[str, Any] | None = STATS) -> list[str]:
    usage = {7: {"rss_bytes": 100, "cpu_percent": 1.5, "uptime_s": 3.0}}
    health = examine(NODE, stats and stats["spool"], [], 0.5)
    return metrics(health, NODE, usage, stats, CLUSTER, BRIDGES, {}).splitlines()


def test_figures_have_the_part_that_they_are_of_and_totals_say_so() -> None:
    found = lines()
    for line in (
        "angarium_router_sessions 3",
        "angarium_router_messages_in_total 1000",
        'angarium_router_discards_total{reason="no-local"} 4',
        'angarium_router_errors_total{code="40101"} 5',
        "angarium_spool_messages 6",
        "angarium_spool_acks_total 7",
        'angarium_process_restarts_total{role="router",index="0"} 2',
        'angarium_process_rss_bytes{role="router",index="0"} 100',
        'angarium_process_ready{role="worker",index="0"} 0',
        "angarium_node_ready 0",
        "angarium_cluster_topology_issues 2",
        'angarium_cluster_up{neighbour="b"} 0',
        'angarium_cluster_dead_messages{neighbour="b"} 4',
        "angarium_node_uptime_seconds 12.5",
        'angarium_link_messages_out_total{neighbour="b\\"\\n",vpn="default"} 8',
        'angarium_link_synchronised{neighbour="b\\"\\n",vpn="default"} 1',
        'angarium_link_discards_total{neighbour="b\\"\\n",vpn="default",reason="transmit-congestion"} 9',
        'angarium_bridge_up{name="b",vpn="sales"} 1',
        'angarium_bridge_up{name="gone",vpn="sales"} 0',
        'angarium_bridge_messages_total{name="b",vpn="sales"} 10',
        'angarium_bridge_under_way{name="b",vpn="sales"} 11',
        'angarium_bridge_dropped_total{name="b",vpn="sales",reason="visited"} 12',
        'angarium_bridge_refused_total{name="b",vpn="sales",code="50310"} 13',
    ):
        assert line in found


def test_each_figure_has_its_help_and_type_once_and_its_samples_behind_them() -> None:
    found = lines()
    types = [line.split()[2] for line in found if line.startswith("# TYPE ")]
    assert len(types) == len(set(types))
    current = told = ""
    for line in found:
        if line.startswith("# HELP "):
            told = line.split()[2]
            assert len(line.split()) > 3, line
        elif line.startswith("# TYPE "):
            current = line.split()[2]
            assert current == told
        else:
            assert LINE.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] == current


def test_without_an_answer_of_the_router_its_figures_are_not_there() -> None:
    found = lines(None)
    assert not [line for line in found if "angarium_router" in line or "angarium_spool" in line]
    assert "angarium_node_ready 0" in found


def test_the_page_is_served_as_what_it_is() -> None:
    answer = page(Request(METRICS), examine(NODE, None, [], 0.5), lambda: "angarium_node_ready 0\n")
    assert (answer.status.value, answer.content_type, answer.body) == (
        200,
        CONTENT_TYPE,
        "angarium_node_ready 0\n",
    )


def test_a_controller_that_knows_nothing_yet_has_a_page() -> None:
    world = World()
    assert "angarium_node_ready 0" in world.controller.metrics(world.now).splitlines()


def test_workers_are_asked_each_second_for_what_costs_little() -> None:
    world = World()
    for role, index in (("router", 0), ("worker", 0), ("worker", 1)):
        world.hello(role, index)
    world.wait(0.1)
    seen = world.wait(1.1)
    asked = [(one.identity, one.operation) for one in seen if isinstance(one, effects.Request)]
    assert [operation for identity, operation in asked if identity.startswith(b"worker")] == ["metrics"] * 2
    world.answer(seen, {"spool": {}}, {"rows": 5, "filters": 2, "refused": {"40301": 3}}, None)
    page = world.controller.metrics(world.now).splitlines()
    assert 'angarium_worker_rows_total{index="0"} 5' in page
    assert 'angarium_worker_filters{index="0"} 2' in page
    assert 'angarium_worker_refused_total{index="0",code="40301"} 3' in page
    assert not [line for line in page if line.startswith('angarium_worker_rows_total{index="1"}')]


def test_what_is_declared_as_a_gauge_is_one_and_a_counter_a_total() -> None:
    page = Metrics("thing", "a | gauge | number | x\nb, c | counter by code | number | y\nd | | | z")
    role = Role(name="thing", module="", runtime=str, stop_turn=0, metrics=page)
    sample = Sample(role, {"index": "1"}, {"a": 5, "b": {"7": 6}, "d": 8, "e": 9})
    health = examine(NODE, None, [], 0.5)
    found = metrics(health, {}, {}, None, {}, [sample], {}).splitlines()
    assert [line for line in found if "_thing_" in line] == [
        "# HELP angarium_thing_a X",
        "# TYPE angarium_thing_a gauge",
        'angarium_thing_a{index="1"} 5',
        "# HELP angarium_thing_b_total Y",
        "# TYPE angarium_thing_b_total counter",
        'angarium_thing_b_total{index="1",code="7"} 6',
    ]


@pytest.mark.requirement("R261")
def test_units_and_help_are_those_of_prometheus() -> None:
    page = Metrics("thing", "lag_ms, load_percent, age_s | gauge | x | see [the page](page.md#x), a \\ b")
    role = Role(name="thing", module="", runtime=str, stop_turn=0, metrics=page)
    sample = Sample(role, {}, {"lag_ms": 12, "load_percent": 37.5, "age_s": 3})
    found = metrics(examine(NODE, None, [], 0.5), {}, {}, None, {}, [sample], {}).splitlines()
    assert [line for line in found if "_thing_" in line and "TYPE" not in line] == [
        "# HELP angarium_thing_lag_seconds See the page, a \\\\ b",
        "angarium_thing_lag_seconds 0.012",
        "# HELP angarium_thing_load_ratio See the page, a \\\\ b",
        "angarium_thing_load_ratio 0.375",
        "# HELP angarium_thing_age_seconds See the page, a \\\\ b",
        "angarium_thing_age_seconds 3",
    ]
