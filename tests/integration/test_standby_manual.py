"""Two hosts and an operator: nothing fails over by itself, and the host that is named has every message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.data.node_file import read_node_file
from tests.integration.manual_pair import Host, acts_with, pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    with pair_of(tmp_path) as both:
        yield both


@pytest.mark.timeout(400)
def test_a_standby_in_the_background_is_up_when_it_follows_and_is_stopped_as_a_node_is(
    hosts: tuple[Host, Host],
) -> None:
    alpha, beta = hosts
    alpha.up()
    alpha.run("standby", "promote")
    alpha.wait_ready()
    assert "host beta is the standby of alpha" in beta.run("up", "--detach", *beta.where)
    try:
        assert beta.status()["follows"]
    finally:
        said = beta.run("down")
    assert "is stopped" in said
    assert beta.status()["role"] == ""
    assert "was not running" in beta.run("down")


@pytest.mark.timeout(400)
@pytest.mark.requirement("R269")
def test_a_host_that_is_named_is_the_same_node_only_if_the_other_one_stopped_in_order(
    hosts: tuple[Host, Host],
) -> None:
    """Else that may have gone on alone: neighbours would take what is new for what they had from it."""
    alpha, beta = hosts
    alpha.up()
    beta.up()
    alpha.run("standby", "promote")
    alpha.wait(acts_with(["alpha", "beta"]), "the primary, with its standby")
    alpha.wait_ready()
    node_id = read_node_file(alpha.data).node_id

    beta.wait(lambda status: status["in_sync"] == ["alpha", "beta"], "a standby that knows that it has all")
    alpha.run("down")
    alpha.kill()
    beta.run("standby", "promote")
    beta.wait_ready()
    assert read_node_file(beta.data).node_id == node_id

    alpha.run("standby", "promote", "--host", "beta")
    alpha.up()
    alpha.wait(lambda status: status["in_sync"] == ["alpha", "beta"], "a standby that knows that it has all")
    beta.kill()
    alpha.run("standby", "promote")
    alpha.wait(acts_with(["alpha"]), "the primary, alone")
    wait_for(lambda: read_node_file(alpha.data).node_id, lambda found: found != node_id, "another id")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_host_that_the_operator_names_has_every_message_and_the_other_one_follows(
    hosts: tuple[Host, Host],
) -> None:
    alpha, beta = hosts
    alpha.up()
    beta.up()
    alpha.run("standby", "promote")
    alpha.wait(acts_with(["alpha", "beta"]), "the primary, with its standby")
    alpha.wait_ready()
    alpha.run("queue", "create", "q")
    for number in range(5):
        alpha.run("pub", "q", f"m{number}", "--queue")
    # The standby is a moment behind, and would lack something until then.
    wait_for(
        lambda: alpha.run("standby", "switch", is_done=False), lambda said: "promote" in said, "what is to do"
    )

    beta.wait(lambda status: status["in_sync"] == ["alpha", "beta"], "a standby that knows that it has all")
    alpha.kill()
    beta.run("standby", "promote")
    beta.wait(acts_with(["beta"]), "the primary, alone")
    alpha.run("standby", "promote", "--host", "beta")
    alpha.up()
    beta.wait(acts_with(["alpha", "beta"]), "the primary, with alpha as its standby")
    beta.wait_ready()
    assert alpha.status()["role"] == "standby"
    got = beta.run("consume", "q", "--count", "5")
    assert [f"m{number}" in got for number in range(5)] == [True] * 5
