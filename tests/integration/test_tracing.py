"""One trace over all protocols: the context of a message is carried wherever the message goes."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from angarium import blocking
from angarium_server.testing import Node
from tests.acceptance.document import FENCE
from tests.acceptance.installation import ROOT
from tests.integration.http_api import Web
from tests.integration.mqtt_clients import Paho, properties_of, publish_properties
from tests.integration.webhook_sink import Sink
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

CONFIG: Final = """
[mqtt]
listen = ["tcp://127.0.0.1:0"]

[http]
listen = ["http://127.0.0.1:0"]
webhook_networks = ["127.0.0.0/8"]
"""
LIMIT_S: Final = 20.0
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT: Final = f"00-{TRACE}-00f067aa0ba902b7-00"
TRACESTATE: Final = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
CONTEXT: Final = {"traceparent": TRACEPARENT, "tracestate": TRACESTATE}
MALFORMED: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-01"


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with Sink(hook=lambda _n, _came: 204) as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, sink: Sink) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("tracing")
    file = folder / "node.toml"
    file.write_text(CONFIG)
    with Node(folder / "data", workers=1, config=file) as running:
        for name, topic in (("orders", "orders/>"), ("taken", "taken"), ("posted", "done/>")):
            settings = ("--set", "owner=default", "--subscription", topic)
            running.run("queue", "create", name, *settings)
        hook = ("--set", "queue=posted", "--set", f"url={sink.url('hook')}")
        running.run("webhook", "create", "hook", *hook)
        yield running


@pytest.fixture
def web(node: Node) -> Iterator[Web]:
    made = Web(node)
    yield made
    made.close()


def user_properties(message: Any) -> dict[str, str]:
    return dict(getattr(properties_of(message), "UserProperty", []))


def event(web: Web, path: str) -> dict[str, Any]:
    """Give the data of the first event of a stream."""
    web._line.request("GET", path, headers={})
    stream = web._line.getresponse()
    for line in stream:
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            stream.close()
            return found
    raise AssertionError("no event came")


def test_one_trace_goes_through_all_protocols(node: Node, web: Web, sink: Sink) -> None:
    """POST, a queue, a native consumer, MQTT 5, a queue that MQTT publishes to, a webhook."""
    with (
        Paho(node.ready["mqtt"][0]) as mqtt,
        blocking.connect(node.url) as client,
        client.consume("orders") as flow,
        client.subscribe("done/*") as direct,
    ):
        mqtt.subscribe("shipped/+")
        assert web.post("/v1/topics/orders/7", b"two", **CONTEXT).status == 204
        order = flow.receive(LIMIT_S)
        assert order.properties == CONTEXT
        order.accept()
        client.publish("shipped/7", b"sent", properties=order.properties)
        shipped = mqtt.receive()
        assert user_properties(shipped) == CONTEXT
        again = publish_properties(UserProperty=list(user_properties(shipped).items()))
        mqtt.publish("done/7", b"done", properties=again, qos=1)
        assert direct.receive(LIMIT_S).properties == CONTEXT
    wait_until(lambda: sink.got["hook"], "the webhook is called")
    headers = sink.got["hook"][0].headers
    assert {name: headers[name] for name in CONTEXT} == CONTEXT
    assert not [name for name in headers if name.startswith("angarium-property-trace")]


def test_a_queue_over_http_shows_the_context_as_properties(web: Web) -> None:
    for _ in range(2):
        assert web.post("/v1/queues/taken", b"", **CONTEXT).status == 204
    (taken,) = web.post("/v1/queues/taken/receive?wait=20&ack=auto").value["messages"]
    assert taken["properties"] == CONTEXT
    assert event(web, "/v1/events?queue=taken")["properties"] == CONTEXT


def test_what_is_malformed_is_dropped_counted_and_breaks_no_message(node: Node, web: Web, sink: Sink) -> None:
    with blocking.connect(node.url) as client, client.subscribe("broken/*") as subscription:
        assert web.post("/v1/topics/broken/1?delivery=direct", b"http", traceparent=MALFORMED).status == 202
        received = subscription.receive(LIMIT_S)
        assert (received.payload, received.properties) == (b"http", {})
        with Paho(node.ready["mqtt"][0]) as mqtt:
            pairs = [("traceparent", MALFORMED), ("tracestate", TRACESTATE), ("colour", "red")]
            mqtt.publish("broken/2", b"mqtt", properties=publish_properties(UserProperty=pairs))
            received = subscription.receive(LIMIT_S)
        assert (received.payload, received.properties) == (b"mqtt", {"colour": "red"})
        before = len(sink.got["hook"])
        with client.producer() as producer:
            producer.publish("done/8", b"native", properties={"traceparent": MALFORMED, "tracestate": 7})
    wait_until(lambda: len(sink.got["hook"]) > before, "the webhook is called")
    posted = sink.got["hook"][-1]
    assert posted.body == b"native"
    assert not posted.headers.keys() & {"traceparent", "tracestate", "angarium-property-traceparent"}
    for role in ("http", "mqtt", "webhook"):
        wait_until(partial(counted, node, role), f"{role} counts it")


def counted(node: Node, role: str) -> float:
    """Give how many malformed contexts a process has left out."""
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=LIMIT_S) as page:
        lines = page.read().decode().splitlines()
    name = f"angarium_{role}_malformed_contexts_total"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_the_example_of_the_page_prints_what_it_says(node: Node) -> None:
    text = (ROOT / "docs" / "tracing.md").read_text()
    (console, printed) = [body for kind, _, body in FENCE.findall(text) if kind in ("console", "text")][:2]
    node.run("consume", "orders", "--idle-timeout", "0.1")
    _, post, consume = (line.removeprefix("$ ") for line in console.splitlines())
    post = post.replace("http://127.0.0.1:8080", node.http_url).replace("curl", "curl -sS --max-time 20", 1)
    subprocess.run(["bash", "-c", post], timeout=30, check=True)
    pattern = ".*".join(re.escape(part) for part in printed.strip().split("..."))
    assert re.fullmatch(pattern, node.run(*consume.split()[1:]).strip())
