"""Where a node that joins listens, and what waits in queues when one leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from angarium import errors
from cluster.configuration.config import NodeConfig
from cluster.join import client, stored
from cluster.join.client import JoinOptions, join, places
from cluster.join.frames import Admission, Neighbour
from cluster.join.stored import Joined
from cluster.join.tokens import ID_BYTES, SECRET_BYTES, Written


def found(
    local_host: str = "10.0.0.3", configured: list[str] | None = None, **given: Any
) -> tuple[list[str], list[str]]:
    config = NodeConfig()
    if configured is not None:
        config = msgspec.structs.replace(
            config, router=msgspec.structs.replace(config.router, listen=configured)
        )
    options = JoinOptions(url="tls://a:1", token="T", data_dir=Path("d"), on_warning=print, **given)
    return places(config, options, local_host)


def test_who_says_nothing_listens_where_the_cluster_sees_this_host_and_for_its_own_clients() -> None:
    assert found() == (["tls://10.0.0.3:55555", "tcp://127.0.0.1:55555"], ["tls://10.0.0.3:55555"])
    assert found("127.0.0.1") == (["tls://127.0.0.1:55555"], ["tls://127.0.0.1:55555"])
    assert found("fd00::3")[1] == ["tls://[fd00::3]:55555"]


def test_an_address_for_all_becomes_the_one_that_the_cluster_sees() -> None:
    assert found(listen=("tls://0.0.0.0:7000",)) == (["tls://0.0.0.0:7000"], ["tls://10.0.0.3:7000"])
    assert found(configured=["tcp://127.0.0.1:1", "tls://*:7000"])[1] == ["tls://10.0.0.3:7000"]
    assert found(listen=("tls://host-c:7000",))[1] == ["tls://host-c:7000"]
    assert found(listen=("tls://*:7000",), addresses=("tls://out:9",))[1] == ["tls://out:9"]


@pytest.mark.parametrize(
    "given",
    [
        {"listen": ("tcp://127.0.0.1:7000",)},
        {"listen": ("tls://0.0.0.0:0",)},
        {"listen": ("tls://0.0.0.0:7000",), "addresses": ("tcp://10.0.0.3:7000",)},
        {"listen": ("tcp://127.0.0.1:7000",), "addresses": ("tls://10.0.0.3:7000",)},
    ],
)
def test_what_no_other_node_reaches_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequestError):
        found(**given)


def test_who_was_interrupted_before_its_node_started_tells_the_other_nodes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its side of the links is made at its start; without theirs they would stay down, and nobody knew why."""
    fingerprint = bytes(32)
    token = Written(bytes(ID_BYTES), bytes(SECRET_BYTES), fingerprint).text()
    joined = Joined(
        cluster="c", node="n", listen=[], addresses=["tls://n:1"], through="a", fingerprint=fingerprint.hex()
    )
    nodes = [Neighbour(node=name, addresses=[f"tls://{name}:1"]) for name in ("a", "b", "d")]
    stored.begin(tmp_path)
    stored.keep(tmp_path, joined, Admission(node="a", cluster="c", secret="s"), nodes)
    told: list[str] = []
    monkeypatch.setattr(
        client, "tell_members", lambda _data, _joined, _wish, to, *_: told.extend(one.node for one in to)
    )
    options = JoinOptions(url="tls://a:1", token=token, data_dir=tmp_path, on_warning=print)
    assert join(options) == joined
    assert told == ["b", "d"]
    stored.links_made(tmp_path)
    assert join(options) == joined
    assert told == ["b", "d"], "they have known it since the node was started"
