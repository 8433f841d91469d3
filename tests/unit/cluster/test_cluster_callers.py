"""Who somebody is, by the door that he came by and what he showed there."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from angarium_server.connections.tls import common_name_of
from cluster.catalog.catalog import Catalog
from cluster.controller.access.callers import LOCAL, Callers, Claim, Who
from storage.config_store import Change


@pytest.fixture
def callers() -> Callers:
    catalog = Catalog([])
    catalog.take(catalog.missing_built_ins())
    made: dict[str, dict[str, Any]] = {
        "carl": {"certificate_name": "CN-carl", "role": "operator", "vpn": "default"},
        "gone": {"certificate_name": "CN-gone", "enabled": False},
        "anna": {"certificate_name": "CN-anna"},
        "twice": {"certificate_name": "ben"},
    }
    for name, attributes in made.items():
        catalog.take(
            [one for one in catalog.create("operator", "", name, attributes) if isinstance(one, Change)]
        )
    return Callers(catalog, ["anna", "ben"], "broker")


def remote(name: str) -> Claim:
    return Claim("remote", name, "10.0.0.7")


def certificate(*names: str) -> dict[str, Any]:
    """Give a certificate as `ssl` describes it."""
    return {"subject": ((("organizationName", "anna"),), *(((("commonName", name),)) for name in names))}


def test_the_command_on_the_host_is_the_owner_of_the_node(callers: Callers) -> None:
    assert callers.who(LOCAL) == Who("broker", "administrator", "", "local", "")


@pytest.mark.requirement("R257")
def test_who_has_other_rights_than_his_claim_says_is_refused(callers: Callers) -> None:
    """An answer that others get too is made by the rights that they have."""
    claim = Claim("management", "carl", "10.0.0.7")
    carl = Who("carl", "operator", "default", "management", "10.0.0.7")
    assert callers.who(claim) == callers.who(claim._replace(rights=("operator", "default"))) == carl
    for rights in (("operator", ""), ("operator", "other"), ("viewer", "default"), ("", "")):
        with pytest.raises(errors.ForbiddenError):
            callers.who(claim._replace(rights=rights))


@pytest.mark.requirement("R258")
def test_a_listed_certificate_administers_the_node(callers: Callers) -> None:
    assert callers.who(remote("anna")) == Who("anna", "administrator", "", "remote", "10.0.0.7")
    assert callers.who(remote("ben")).role == "administrator", (
        "also if it is that of an operator who may less"
    )


@pytest.mark.requirement("R258")
def test_a_certificate_of_an_operator_has_his_role(callers: Callers) -> None:
    assert callers.who(remote("CN-carl")) == Who("carl", "operator", "default", "remote", "10.0.0.7")
    assert callers.who(remote("CN-anna")) == Who("anna", "viewer", "", "remote", "10.0.0.7")


@pytest.mark.parametrize("shown", ["", "Anna", "carl", "CN-gone", "CN-carl "])
def test_whoever_else_shows_a_certificate_is_nobody(callers: Callers, shown: str) -> None:
    with pytest.raises(errors.AngariumError) as refused:
        callers.who(remote(shown))
    assert refused.value.code == errors.UNAUTHORIZED


@pytest.mark.parametrize(
    "shown",
    [{}, certificate(), certificate("carl", "anna")],
    ids=["empty", "unnamed", "two names"],
)
def test_a_certificate_without_one_common_name_has_none(shown: dict[str, Any]) -> None:
    assert common_name_of(shown) == ""
    assert common_name_of(certificate("anna")) == "anna"


def test_nobody_is_the_owner_by_his_name(callers: Callers) -> None:
    for door in ("management", "remote"):
        with pytest.raises(errors.AngariumError):
            callers.who(Claim(door, "broker", ""))
