"""What a node keeps of its cluster, and how it counts beneath the configuration."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium import errors
from cluster.configuration.config import NodeConfig, cluster_secret
from cluster.join import stored
from cluster.join.frames import Admission, Neighbour
from cluster.join.stored import Joined

if TYPE_CHECKING:
    from pathlib import Path

JOINED = Joined(
    cluster="trains",
    node="c",
    listen=["tls://10.0.0.3:55555"],
    addresses=["tls://10.0.0.3:55555"],
    through="a",
    fingerprint="ff",
)
ADMISSION = Admission(
    node="a", cluster="trains", secret="the secret of all of them", authority="CA", certificate="CERT"
)
LINKS = [
    Neighbour(node="a", addresses=["tls://10.0.0.1:55555"]),
    Neighbour(node="b", addresses=[], server_name="x"),
]


def keep(data: Path) -> None:
    (stored.begin(data) / stored.KEY).write_text("KEY")
    stored.keep(data, JOINED, ADMISSION, LINKS)


def test_what_was_kept_counts_where_the_file_says_nothing(tmp_path: Path) -> None:
    keep(tmp_path)
    config = stored.with_joined(NodeConfig(), tmp_path)
    folder = tmp_path / "cluster"
    assert (config.cluster.name, config.node.name, config.router.listen) == ("trains", "c", JOINED.listen)
    assert cluster_secret(config.cluster) == ADMISSION.secret
    assert config.cluster.ca_file == str(folder / "authority.pem")
    assert (config.router.tls_cert_file, config.router.tls_key_file) == (
        str(folder / "node.pem"),
        str(folder / "node.key"),
    )
    assert stored.with_secret(config, tmp_path) is config


def test_what_the_file_says_stays(tmp_path: Path) -> None:
    keep(tmp_path)
    empty = NodeConfig()
    own = msgspec.structs.replace(
        empty,
        cluster=msgspec.structs.replace(
            empty.cluster, name="own", secret_file="own.secret", ca_file="own.pem"
        ),
        router=msgspec.structs.replace(empty.router, listen=["tcp://127.0.0.1:1"], tls_cert_file="mine.pem"),
        node=msgspec.structs.replace(empty.node, name="mine"),
    )
    assert stored.with_joined(own, tmp_path) == own


def test_everything_is_private_and_links_are_made_once(tmp_path: Path) -> None:
    keep(tmp_path)
    for path in (tmp_path / "cluster", *(tmp_path / "cluster").iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.name == stored.KEY, path
    assert stored.new_links(tmp_path) == [
        ["link", "", "a", {"addresses": ["tls://10.0.0.1:55555"], "server_name": ""}],
        ["link", "", "b", {"addresses": [], "server_name": "x"}],
    ]
    stored.links_made(tmp_path)
    assert stored.new_links(tmp_path) == []


def test_a_join_that_broke_off_counts_for_nothing_and_keeps_its_key(tmp_path: Path) -> None:
    key = stored.begin(tmp_path) / stored.KEY
    key.write_text("KEY")
    (tmp_path / "joining" / "cluster.secret").write_text("half")
    assert stored.read(tmp_path) is None
    assert stored.with_joined(NodeConfig(), tmp_path) == NodeConfig()
    assert (stored.begin(tmp_path) / stored.KEY).read_text() == "KEY"


def test_a_full_disk_leaves_nothing_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stored, "write_durably", full)
        with pytest.raises(errors.UnavailableError) as caught:
            keep(tmp_path)
    assert caught.value.code == errors.DISK_FULL
    assert stored.read(tmp_path) is None
    keep(tmp_path)
    assert stored.read(tmp_path) == JOINED


def test_a_node_without_a_secret_makes_one_and_keeps_it(tmp_path: Path) -> None:
    first = cluster_secret(stored.with_secret(NodeConfig(), tmp_path).cluster)
    assert len(first) == 64
    assert cluster_secret(stored.with_secret(NodeConfig(), tmp_path).cluster) == first
    assert stat.S_IMODE((tmp_path / "cluster.secret").stat().st_mode) == 0o600


def test_the_authority_beside_the_certificate_is_trusted_unless_one_is_named(tmp_path: Path) -> None:
    config = NodeConfig()
    router = msgspec.structs.replace(config.router, tls_cert_file=str(tmp_path / "n.pem"))
    config = msgspec.structs.replace(config, router=router)
    assert stored.with_authority(config) is config
    (tmp_path / "authority.pem").write_text("CA")
    assert stored.with_authority(config).cluster.ca_file == str(tmp_path / "authority.pem")
    named = msgspec.structs.replace(
        config, cluster=msgspec.structs.replace(config.cluster, ca_file="own.pem")
    )
    assert stored.with_authority(named) is named


def test_what_is_put_away_counts_no_more(tmp_path: Path) -> None:
    keep(tmp_path)
    left = stored.put_away(tmp_path)
    assert stored.with_joined(NodeConfig(), tmp_path) == NodeConfig()
    assert (left / "cluster.secret").exists()
