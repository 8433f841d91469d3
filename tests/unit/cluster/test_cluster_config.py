"""The configuration file: defaults, faults, safety, declared objects."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from angarium import errors
from angarium_server.connections import addresses
from cluster.configuration import config
from cluster.security import passwords
from cluster.security.authority import create_certificate

if TYPE_CHECKING:
    from pathlib import Path


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults(tmp_path: Path, text: str) -> list[str]:
    return config.check_config(write(tmp_path, text))


def make_authority() -> str:
    """Give the certificate of an authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
    ).sign(key, hashes.SHA256())
    return made.public_bytes(Encoding.PEM).decode()


def test_without_a_file_everything_has_its_default() -> None:
    assert config.load_config(None) == config.NodeConfig()


def test_the_defaults_are_good() -> None:
    assert config.faults_of(config.NodeConfig()) == []


def test_the_sample_file_says_every_key_and_means_the_defaults(tmp_path: Path) -> None:
    text = config.show_defaults()
    assert config.load_config(write(tmp_path, text)) == config.NodeConfig()
    tables = tomllib.loads(text)
    for name, struct in config.SECTIONS.items():
        assert list(tables[name]) == list(struct.__struct_fields__)


def test_every_key_of_the_sample_file_has_a_sentence() -> None:
    lines = config.show_defaults().splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith(("#", " ")):
            assert lines[number - 1].startswith("# "), line
            assert len(lines[number - 1]) > 15, f"{line} has no sentence"


def test_the_shown_configuration_is_one_that_can_be_loaded_again(tmp_path: Path) -> None:
    loaded = config.load_config(write(tmp_path, '[node]\nname = "berlin"\n[vpn.orders]\nenabled = false\n'))
    again = config.load_config(write(tmp_path, config.show_config(loaded)))
    assert again == loaded


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        config.NodeConfig().node = config.NodeSection()  # type: ignore[misc]


def test_keys_of_the_file_override_defaults(tmp_path: Path) -> None:
    loaded = config.load_config(write(tmp_path, '[router]\nlisten = ["tcp://127.0.0.1:7000"]\nworkers = 3\n'))
    assert loaded.router.listen == ["tcp://127.0.0.1:7000"]
    assert loaded.router.workers == 3
    assert loaded.worker == config.NodeConfig().worker


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[rooter]\nworkers = 1", "rooter: there is no such section: did you mean 'router'?"),
        ("[router]\nwokers = 1", "router.wokers: there is no such key: did you mean 'workers'?"),
        ("[router]\nworkers = 99", "router.workers = 99: Expected `int` <= 64"),
        ("[router]\nworkers = true", "router.workers = True: Expected `int`, got `bool`"),
        ("[router]\nlisten = 'x'", "router.listen = 'x'"),
        ("[log]\nlevel = 'LOUD'", "log.level = 'LOUD'"),
        ("router = 1", "router"),
        ("[router\n", "line 1"),
        ("[vpn]\norders = 1", "vpn.orders: write [vpn.orders]"),
        ("[vpn.orders]\nacl = 1", "vpn.orders.acl: write [vpn.orders.acl.NAME]"),
        ("[vpn.orders]\nenabld = true", "did you mean 'enabled'?"),
        ("[vpn.orders.profile.p]\neliding_delay_ms = 70000", "vpn.orders.profile.p"),
        ("[vpn.orders.username.a]\npassword = 'plain'", "write password_file"),
        ("[vpn.'a*']\n", "a name has"),
        ("[router]\nlisten = ['http://x']", "'http://x' is no address"),
        ("[router]\nlisten = ['tcp://127.0.0.1:70000']", "has no port"),
        ("[router]\nlisten = []", "at least one address"),
        ("[router]\ntls_cert_file = 'none.pem'", "router.tls_cert_file: "),
        ("[router]\ntls_username = 'dns'", "router.tls_username: "),
        ("[router]\ntls_username = 'CN'", "router.tls_username = 'CN'"),
        ("[cluster]\nca_file = 'none.pem'", "none.pem: No such file or directory"),
        ("[cluster]\nca_file = 'node.toml'", "cluster.ca_file: "),
        ("[admin]\noperators = ['']", "admin.operators"),
        ("[mqtt]\nlisten = ['tcp://0.0.0.0:1883']", "'angarium up --mqtt tls://0.0.0.0:1883 --cert-file"),
        (
            "[mqtt]\nlisten = ['tls://127.0.0.1:8883']",
            "mqtt.listen: tls://127.0.0.1:8883: it needs a certificate",
        ),
        ("[mqtt]\nlisten = ['127.0.0.1:1883']", "mqtt.listen: '127.0.0.1:1883' is no address"),
        (
            "[mqtt]\nlisten = ['ipc:///run/mqtt']",
            "'ipc:///run/mqtt' is no address: write tcp, tls, ws or wss",
        ),
        (
            "[mqtt]\nlisten = ['tcp://127.0.0.1:']",
            "mqtt.listen: 'tcp://127.0.0.1:' is no address: write tcp, tls, ws or wss",
        ),
        (
            "[mqtt]\nlisten = ['wss://127.0.0.1/orders']",
            "mqtt.listen: 'wss://127.0.0.1/orders' is no address: write tcp, tls, ws or wss",
        ),
        ("[mqtt]\nlisten = ['tcp://127.0.0.1:99999']", "has no port"),
        ("[mqtt]\nlisten = ['ws://0.0.0.0:8083']", "tls://0.0.0.0:8083"),
        ("[mqtt]\nlisten = ['wss://127.0.0.1:8084']", "it needs a certificate"),
        ("[mqtt]\nlisten = ['ws://127.0.0.1:1', 'tcp://127.0.0.1:1']", "another entry has this address"),
        ("[mqtt]\nlisten = ['tcp://127.0.0.1:1883/a/b']", "'a/b' cannot name a vpn"),
        (
            "[mqtt]\nlisten = ['tcp://127.0.0.1:1883', 'tcp://127.0.0.1:1883/orders']",
            "mqtt.listen: tcp://127.0.0.1:1883/orders: another entry has this address",
        ),
        ("[mqtt]\nprocesses = 0", "mqtt.processes = 0"),
    ],
)
def test_a_fault_is_a_sentence_that_names_the_key(tmp_path: Path, text: str, told: str) -> None:
    found = faults(tmp_path, text)
    assert len(found) == 1
    assert told in found[0]


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path, "[router]\nworkers = 99\nwokers = 1\n[nod]\n[log]\nlevel = 'x'\n")) == 4


def test_loading_a_faulty_file_names_file_and_fault(tmp_path: Path) -> None:
    path = write(tmp_path, "[router]\nworkers = 99\n")
    with pytest.raises(errors.InvalidRequestError, match=r"router\.workers") as caught:
        config.load_config(path)
    assert caught.value.code == errors.INVALID_CONFIGURATION
    assert str(path) in caught.value.detail


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequestError, match="none.toml"):  # noqa: RUF043 - a name
        config.load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "url",
    [
        "tcp://0.0.0.0:55555",
        "tcp://*:55555",
        "tcp://192.168.1.2:0",
        "tcp://[::]:5",
        "tcp://eth0:5",
        "tcp://example.org:5",
    ],
)
def test_an_address_that_others_reach_is_refused_without_keys(tmp_path: Path, url: str) -> None:
    (found,) = faults(tmp_path, f"[router]\nlisten = ['{url}']\n")
    assert "'angarium keys create node --host HOST'" in found
    listen = url.replace("tcp://", "tls://")
    assert f"'angarium up --listen {listen} --cert-file node.pem --key-file node.key'" in found


@pytest.mark.parametrize(
    "url",
    [
        "tcp://127.0.0.1:0",
        "tcp://127.1.2.3:5",
        "tcp://localhost:5",
        "tcp://[::1]:5",
        "tcp://127.0.0.1:*",
        "ipc:///run/a",
    ],
)
def test_an_address_of_this_host_needs_no_keys(tmp_path: Path, url: str) -> None:
    assert faults(tmp_path, f"[router]\nlisten = ['{url}']\n") == []


def test_with_a_certificate_everybody_may_reach_the_node_by_tls_only(tmp_path: Path) -> None:
    create_certificate(tmp_path / "node")
    text = "[router]\ntls_cert_file = 'node.pem'\ntls_key_file = 'node.key'\nlisten = ['{}://0.0.0.0:0']\n"
    assert faults(tmp_path, text.format("tls")) == []
    (found,) = faults(tmp_path, text.format("tcp"))
    assert "others can reach this address" in found


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    create_certificate(tmp_path / "node")
    (tmp_path / "node.key").chmod(0o644)
    (found,) = faults(tmp_path, "[router]\ntls_cert_file = 'node.pem'\ntls_key_file = 'node.key'\n")
    assert found.startswith("router.tls_key_file: ")
    assert "chmod 600" in found


def test_relative_paths_count_from_the_directory_of_the_file(tmp_path: Path) -> None:
    create_certificate(tmp_path / "a")
    loaded = config.load_config(write(tmp_path, "[router]\ntls_key_file = 'a.key'\n"))
    assert loaded.router.tls_key_file == str(tmp_path / "a.key")
    loaded = config.load_config(write(tmp_path, "[cluster]\nca_file = 'authority.pem'\n"))
    assert loaded.cluster.ca_file == str(tmp_path / "authority.pem")
    assert config.faults_of(loaded) == []


def test_an_open_port_is_one_that_the_system_chooses() -> None:
    assert addresses.has_open_port("tcp://127.0.0.1:0")
    assert addresses.has_open_port("tcp://127.0.0.1:*")
    assert not addresses.has_open_port("tcp://127.0.0.1:5")
    assert not addresses.has_open_port("ipc:///x/0")


DECLARED = """
[vpn.orders]
max_connection_count = 5
[vpn.orders.username.alice]
password_file = "alice.password"
acl_profile = "readers"
[vpn.orders.acl.readers]
subscribe_topic_exceptions = ["orders/>"]
"""


def test_declared_objects_come_in_the_order_in_which_they_need_each_other(tmp_path: Path) -> None:
    loaded = config.load_config(write(tmp_path, DECLARED))
    assert [entry[:3] for entry in loaded.objects] == [
        ["vpn", "", "orders"],
        ["acl", "orders", "readers"],
        ["username", "orders", "alice"],
    ]
    assert loaded.objects[2][3] == {
        "acl_profile": "readers",
        "password_file": str(tmp_path / "alice.password"),
    }


def test_passwords_are_the_first_lines_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "alice.password").write_text("wonderland\nmore\n", encoding="utf-8")
    found = config.parse_objects(DECLARED, tmp_path)
    assert found[2][3] == {"acl_profile": "readers", "password": "wonderland"}


@pytest.mark.parametrize("content", [None, "", "\nsecond"])
def test_a_missing_or_empty_password_file_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "alice.password").write_text(content, encoding="utf-8")
    with pytest.raises(errors.InvalidRequestError, match="password file"):
        config.parse_objects(DECLARED, tmp_path)


def test_a_file_may_declare_the_hash_of_a_password(tmp_path: Path) -> None:
    stored = passwords.hash_password("x", b"0" * 16)
    text = f"[vpn.orders.username.alice]\npassword = '{stored}'\n"
    assert faults(tmp_path, text) == []
    assert config.parse_objects(text)[1][3] == {"password": stored}


def test_the_shown_configuration_holds_no_hash(tmp_path: Path) -> None:
    stored = passwords.hash_password("x", b"0" * 16)
    loaded = config.load_config(write(tmp_path, f"[vpn.orders.username.alice]\npassword = '{stored}'\n"))
    assert "scrypt" not in config.show_config(loaded)


@pytest.mark.requirement("R97")
def test_exported_objects_are_read_back_as_they_were() -> None:
    declared = [
        ["vpn", "", "default", {}],
        ["vpn", "", "orders", {"max_connection_count": 5}],
        ["profile", "orders", "fast", {"eliding": True}],
        ["acl", "orders", "ro", {"publish_topic_exceptions": ["a/>", "it's"]}],
        ["username", "orders", "alice@example.org", {"acl_profile": "ro"}],
    ]
    assert config.parse_objects(config.export_config(declared)) == declared


def test_nothing_is_exported_as_nothing() -> None:
    assert config.export_config([]) == ""
    assert config.parse_objects("") == []


def test_a_text_that_is_no_toml_is_refused() -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        config.parse_objects("[vpn")
    assert caught.value.code == errors.INVALID_CONFIGURATION


@pytest.mark.parametrize(
    "text",
    [
        '[vpn."a\\u0000b"]',
        '[vpn.default.username."a\\u0000b"]',
        '[vpn.default.username.a]\npassword_file = "a\\u0000b"',
        '[vpn.default.username.a]\nacl_profile = "a\\u0000b"',
        '[[link]]\nnode = "a\\u0000b"',
        '[[bridge]]\nname = "b"\nremote_password_file = "a\\u0000b"',
        '[[bridge]]\nname = "b"\npublic_key_file = "a\\u0000b"',
    ],
)
def test_a_nul_in_objects_is_an_error_and_no_fault(text: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequestError, match="NUL") as caught:
        config.parse_objects(text, tmp_path)
    assert caught.value.code == errors.INVALID_CONFIGURATION


def test_a_section_of_a_wrong_name_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    """The node would be as such a file says, and `--prune` would delete what it means to declare."""
    with pytest.raises(
        errors.InvalidRequestError, match="webhook: there is no such section: did you mean 'webhooks'"
    ):
        config.parse_objects('[[webhook]]\nname = "to-billing"\n', tmp_path)
    assert config.parse_objects("[router]\nlisten = []\n[spool]\n", tmp_path) == []


def test_the_configuration_survives_the_way_to_the_processes() -> None:
    original = config.NodeConfig()
    assert msgspec.json.decode(msgspec.json.encode(original), type=config.NodeConfig) == original


# -- the spool -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R182", "R185", "R195", "R197")
def test_the_limits_of_the_spool_have_defaults_and_are_keys_of_the_file(tmp_path: Path) -> None:
    defaults = config.NodeConfig().spool
    assert (defaults.max_files, defaults.max_delivered_unacked) == (50_000, 1_000_000)
    for name in ("usage", "files", "delivered_unacked"):
        raised, cleared = (getattr(defaults, f"event_{name}_{what}_percent") for what in ("set", "clear"))
        assert (raised, cleared) == (80, 60)
    path = tmp_path / "node.toml"
    path.write_text(
        "[spool]\nmax_files = 3\nmax_usage_mb = 7\nevent_files_set_percent = 90\n", encoding="utf-8"
    )
    spool = config.load_config(path).spool
    assert (spool.max_files, spool.max_usage_mb, spool.event_files_set_percent) == (3, 7, 90)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_usage_mb = 100_000", "spool.map_gb = 64: max_usage_mb = 100000 needs 300 or more"),
        ("event_usage_set_percent = 10", "spool.event_usage_clear_percent = 60: it is at most"),
        ("max_files = 0", "spool.max_files = 0"),
        ("map_bytes = 1", "did you mean"),
    ],
)
def test_a_spool_that_cannot_be_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"[spool]\n{text}\n", encoding="utf-8")
    faults = config.check_config(path)
    assert len(faults) == 1
    assert told in faults[0]


def test_the_workers_get_what_is_theirs_of_the_spool(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        "[worker]\nframes_per_wake = 9\n[router]\nmax_message_bytes = 5000\n"
        "[spool]\nmap_gb = 40\nack_delay_ms = 5\n",
        encoding="utf-8",
    )
    runtime = config.worker_runtime(config.load_config(path), tmp_path / "spool")
    assert (runtime.frames_per_wake, runtime.max_message_bytes) == (9, 5000)
    assert (runtime.spool_dir, runtime.spool_map_bytes) == (str(tmp_path / "spool"), 40_000_000_000)
    assert (runtime.ack_delay_ms, runtime.write_delay_ms) == (5, 50)


@pytest.mark.requirement("R97")
def test_endpoints_are_declared_and_exported_like_other_objects() -> None:
    declared = [
        ["vpn", "", "orders", {}],
        ["queue", "orders", "in/eu", {"subscriptions": ["a/>", "!a/b"], "created_by": "client:alice"}],
        ["topic-endpoint", "orders", "t.1", {"max_ttl_s": 5, "topic": "a/>"}],
        ["template", "orders", "small", {"name_filter": "tmp/>"}],
    ]
    found = config.parse_objects(config.export_config(declared))
    assert sorted(found, key=str) == sorted(declared, key=str)


def test_a_declared_queue_with_a_shared_subscription_is_refused_with_the_reason() -> None:
    text = '[vpn.orders.queue.q]\nsubscriptions = ["#share/g/a"]\n'
    with pytest.raises(
        errors.InvalidRequestError, match=r"vpn\.orders\.queue\.q: Shared Subscriptions Not Supported"
    ):
        config.parse_objects(text)


def test_the_authorities_of_a_bridge_are_read_from_their_file(tmp_path: Path) -> None:
    text = '[[bridges]]\nname = "b"\naddresses = ["tls://10.0.0.2:55555"]\nca_file = "theirs.pem"\n'
    pem = make_authority()
    (tmp_path / "theirs.pem").write_text(pem)
    (tmp_path / "damaged.pem").write_text(pem[:-100])
    assert config.load_config(write(tmp_path, text)).objects[0][3]["ca_pem"] == pem
    (declared,) = config.parse_objects(text, tmp_path)
    assert declared[3]["ca_pem"] == pem
    assert config.parse_objects(config.export_config([declared])) == [declared]
    (fault,) = faults(tmp_path, text.replace("theirs", "other"))
    assert "bridges 'b'" in fault
    assert "other.pem" in fault
    (fault,) = faults(tmp_path, text.replace("theirs", "damaged"))
    assert "no certificate" in fault


def test_bridges_are_declared_in_a_list_and_exported_as_one(tmp_path: Path) -> None:
    text = """
[vpn.orders]
[[bridges]]
name = "b"
vpn = "orders"
remote_vpn = "sales"
remote_password_file = "word"
remote_queue = "q"
"""
    (declared,) = [entry for entry in config.parse_objects(text, tmp_path) if entry[0] == "bridge"]
    password_file = str(tmp_path / "word")
    given = {"remote_vpn": "sales", "remote_password_file": password_file, "remote_queue": "q"}
    assert declared == ["bridge", "orders", "b", given]
    assert config.parse_objects(config.export_config([declared])) == [declared]
    elsewhere = '[[bridges]]\nname = "b"\nremote_vpn = "sales"\n'
    assert config.parse_objects(elsewhere)[0][1] == "default"


def test_webhooks_are_declared_with_files_beside_the_configuration_and_exported(tmp_path: Path) -> None:
    text = """
[[webhooks]]
name = "w"
queue = "q"
url = "https://example.com"
secret_file = "secret"
permanent_codes = [422]
"""
    (declared,) = config.parse_objects(text, tmp_path)
    given = {"queue": "q", "url": "https://example.com", "permanent_codes": [422]}
    assert declared == ["webhook", "default", "w", given | {"secret_file": str(tmp_path / "secret")}]
    assert config.parse_objects(config.export_config([declared])) == [declared]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[bridges]\nname = 'b'\n", "write [[bridges]], with name = NAME"),
        ("[[bridges]]\nremote_vpn = 'x'\n", "cannot name a bridge"),
        ("[[bridges]]\nname = 'b'\nvpn = 'a/b'\n", "cannot name a vpn"),
        ("[[bridges]]\nname = 'b'\nmax_hops = 0\n", "max_hops"),
        ("[vpn.default.bridge.b]\nremote_vpn = 'x'\n", "bridge"),
    ],
)
def test_a_bridge_that_cannot_be_declared_is_named(text: str, told: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as raised:
        config.parse_objects(text)
    assert raised.value.code == errors.INVALID_CONFIGURATION
    assert told in raised.value.detail
