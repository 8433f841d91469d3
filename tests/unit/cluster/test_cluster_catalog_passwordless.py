"""`default` without a password: until somebody has one, or the node listens beyond its own host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster import objects
from cluster.catalog import passwordless
from cluster.catalog.catalog import Catalog
from cluster.configuration.config import NodeConfig
from cluster.configuration.http import HttpSection
from cluster.controller.server import prepare_catalog
from storage.config_store import Change, ConfigStore, Counter, Entry

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requirement("R283")

OVERRIDE = "guaranteed_endpoint_permission_override"


def pretended_hash(password: str) -> str:
    return f"scrypt$16384$8$1$00${password.encode().hex()}"


class Life:
    """A config store in memory, and the starts of a node on it."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.catalog = Catalog([], pretended_hash)

    def keep(self, entries: list[Entry]) -> None:
        self.catalog.take(entries)
        self.counters |= {entry.name: entry.value for entry in entries if isinstance(entry, Counter)}
        self.catalog.validate()

    def start(self, *, elsewhere: bool = False, declared: list[list[Any]] | None = None) -> None:
        self.catalog = Catalog(
            [Change(*row) for row in self.catalog.snapshot()],
            pretended_hash,
            next_endpoint_id=self.counters.get("endpoint", 1),
            passwordless_state=self.counters.get(passwordless.COUNTER, passwordless.UNKNOWN),
        )
        self.keep(self.catalog.missing_built_ins())
        self.keep(self.catalog.apply(declared or []).changes)
        self.keep(passwordless.at_start(self.catalog, reached_from_elsewhere=elsewhere))

    def create(self, kind: str, name: str, vpn: str = "default", **attributes: Any) -> None:
        self.keep(self.catalog.create(kind, vpn, name, attributes))

    def update(self, kind: str, name: str, **attributes: Any) -> None:
        self.keep(self.catalog.update(kind, "default", name, attributes))

    def get(self, kind: str, name: str) -> objects.Attributes:
        found = self.catalog.get(kind, "default", name)
        assert found is not None
        return found

    @property
    def open_to(self) -> list[str]:
        return [f"{row['username']}@{row['vpn']}" for row in passwordless.usernames(self.catalog)]


@pytest.fixture
def life() -> Life:
    life = Life()
    life.start()
    return life


def of_0_1_0() -> Life:
    """A data directory of 0.1.0: `default` has an owner's rights on all, and endpoints have no owner."""
    life = Life()
    life.keep(life.catalog.missing_built_ins())
    life.create("queue", "orders")
    life.create("queue", "theirs", owner="alice")
    for kind, name, changed in (
        ("username", "default", {OVERRIDE: True}),
        ("queue", "orders", {"owner": ""}),
        ("queue", "#DEAD_MSG_QUEUE", {"owner": ""}),
    ):
        life.keep([Change(kind, "default", name, {**life.get(kind, name), **changed})])
    return life


def test_default_owns_what_operators_make_while_it_needs_no_password_and_nothing_else(life: Life) -> None:
    assert life.get("username", "default")[OVERRIDE] is False
    life.create("vpn", "other", vpn="")
    life.create("queue", "orders")
    life.create("topic-endpoint", "prices")
    life.create("queue", "theirs", owner="alice")
    life.create("queue", "nobodys", owner="")
    life.create("queue", "elsewhere", vpn="other")
    owners = {
        key: one["owner"]
        for kind in objects.ENDPOINT_KINDS
        for key, one in life.catalog.of_kind(kind).items()
    }
    assert owners == {
        ("default", "#DEAD_MSG_QUEUE"): "default",
        ("default", "#retained"): "",
        ("default", "orders"): "default",
        ("default", "prices"): "default",
        ("default", "theirs"): "alice",
        ("default", "nobodys"): "",
        ("other", "elsewhere"): "",
        ("other", "#DEAD_MSG_QUEUE"): "",
        ("other", "#retained"): "",
    }


@pytest.mark.parametrize("vpn", ["default", "other"])
def test_the_first_password_of_anybody_disables_default(life: Life, vpn: str) -> None:
    life.create("vpn", "other", vpn="")
    life.create("username", "open", vpn=vpn)
    assert sorted(life.open_to) == sorted(["default@default", f"open@{vpn}"])
    life.create("username", "alice", vpn=vpn, password="secret")
    assert life.open_to == [f"open@{vpn}"]
    assert life.get("queue", "#DEAD_MSG_QUEUE")["owner"] == ""
    life.create("queue", "later")
    assert life.get("queue", "later")["owner"] == ""


def test_a_password_that_a_username_gets_later_counts_too(life: Life) -> None:
    life.create("username", "alice")
    assert "default@default" in life.open_to
    life.update("username", "alice", password="secret")
    assert life.open_to == []


def test_a_password_of_default_itself_leaves_it_enabled(life: Life) -> None:
    life.update("username", "default", password="secret")
    assert life.get("username", "default")["enabled"]
    assert life.open_to == []
    life.create("username", "alice", password="other")
    assert life.get("username", "default")["enabled"]


def test_default_that_loses_its_password_is_disabled_if_others_have_one(life: Life) -> None:
    life.update("username", "default", password="x")
    life.create("username", "alice", password="y")
    assert life.get("username", "default")["enabled"] is True
    life.update("username", "default", password="")
    assert life.get("username", "default")["enabled"] is False


def test_a_file_of_many_usernames_does_not_look_at_all_of_them_for_each(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five thousand it took the controller longer than it may be silent."""
    looks: list[str] = []
    of_kind = Catalog.of_kind

    def noting(catalog: Catalog, kind: str, vpn: str | None = None) -> Any:
        looks.append(kind)
        return of_kind(catalog, kind, vpn)

    monkeypatch.setattr(Catalog, "of_kind", noting)
    made = life.catalog.apply([["username", "default", f"u{number}", {}] for number in range(50)])
    assert len(made.report) == 50
    assert looks.count("username") <= 1


def test_what_an_operator_said_counts(life: Life) -> None:
    life.create("username", "alice", password="secret")
    life.update("username", "default", enabled=True)
    life.create("username", "bob", password="other")
    life.start(elsewhere=True)
    assert life.open_to == ["default@default"]


def test_an_operator_who_said_so_before_is_asked_nothing(life: Life) -> None:
    life.update("username", "default", enabled=True)
    life.create("username", "alice", password="secret")
    life.start(elsewhere=True)
    assert life.open_to == ["default@default"]


def test_an_address_beyond_loopback_disables_default_at_the_start(life: Life) -> None:
    life.start(elsewhere=True)
    assert life.open_to == []
    life.start()
    assert life.open_to == []


def test_a_file_with_passwords_disables_default_at_the_first_start() -> None:
    life = Life()
    declared = [["username", "default", "alice", {"password": "secret"}], ["queue", "default", "orders", {}]]
    life.start(declared=declared)
    assert life.open_to == []
    assert life.get("queue", "orders")["owner"] == ""
    life.update("username", "default", enabled=True)
    life.start(declared=declared)
    assert life.open_to == ["default@default"]


def test_a_file_may_say_that_default_stays() -> None:
    life = Life()
    life.start(
        declared=[
            ["username", "default", "alice", {"password": "secret"}],
            ["username", "default", "default", {"enabled": True}],
        ]
    )
    assert life.open_to == ["default@default"]


def test_applying_a_file_reports_what_becomes_of_default(life: Life) -> None:
    report = life.catalog.apply([["username", "default", "alice", {"password": "secret"}]]).report
    assert [(row["action"], row["name"]) for row in report] == [("create", "alice"), ("update", "default")]
    assert report[1]["changes"] == {"enabled": [True, False]}


def test_a_data_directory_of_0_1_0_goes_on_and_default_owns_what_had_no_owner() -> None:
    life = of_0_1_0()
    life.start()
    assert life.get("username", "default")[OVERRIDE] is False
    owners = {name: one["owner"] for (_, name), one in life.catalog.of_kind("queue").items()}
    assert owners == {"#DEAD_MSG_QUEUE": "default", "#retained": "", "orders": "default", "theirs": "alice"}
    life.update("username", "default", **{OVERRIDE: True})
    life.start()
    assert life.get("username", "default")[OVERRIDE], "the upgrade is made once"


def test_a_data_directory_of_0_1_0_with_passwords_is_closed_by_the_upgrade() -> None:
    life = of_0_1_0()
    user = objects.complete("username", {"password": pretended_hash("secret")})
    life.keep([Change("username", "default", "alice", user)])
    life.start()
    assert life.open_to == []
    assert life.get("username", "default")[OVERRIDE] is False
    assert life.get("queue", "orders")["owner"] == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_a_backup_brings_back_owners_and_what_was_decided(life: Life, *, enabled: bool) -> None:
    life.create("queue", "nobodys", owner="")
    life.create("username", "alice", password="secret")
    life.update("username", "default", enabled=enabled)
    other = Life()
    other.start()
    other.keep(other.catalog.apply(life.catalog.export()).changes)
    assert other.catalog.snapshot() == life.catalog.snapshot()
    assert other.catalog.passwordless in (passwordless.CLOSED, passwordless.DECIDED)


@pytest.mark.parametrize(
    ("listen", "public_url", "is_enabled"),
    [
        (["http://127.0.0.1:8080"], "https://messages.example", False),
        (["http://127.0.0.1:8080"], "https://messages.example:8443", False),
        (["http://127.0.0.1:8080"], "http://localhost:8080", True),
        (["http://127.0.0.1:8080"], "", True),
        ([], "https://messages.example", True),
        (["https://0.0.0.0:8080"], "", False),
    ],
)
def test_who_comes_by_a_proxy_is_not_of_this_host(
    tmp_path: Path, listen: list[str], public_url: str, is_enabled: bool
) -> None:
    store = ConfigStore(tmp_path / "config")
    config = NodeConfig(http=HttpSection(listen=listen, public_url=public_url))
    try:
        catalog = prepare_catalog(store, config, 1, "n")
    finally:
        store.close()
    default = catalog.get("username", "default", "default")
    assert default is not None
    assert default["enabled"] is is_enabled
