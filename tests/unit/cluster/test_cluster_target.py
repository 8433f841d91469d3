"""Which node a command is about: who goes before whom, and what is said when nothing decides."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.commands.connecting.target import Here, Place, Purpose, Target, choose
from cluster.data.registry import RunningNode

HERE = Here("/srv/here", runs=True)
STOPPED = Here("/srv/here", runs=False)
ELSEWHERE = RunningNode("elsewhere", "/srv/elsewhere", "tcp://127.0.0.1:2")
STARTING = RunningNode("third", "/srv/t", "")
OPTIONS = Place("the command line", url="tcp://option:1", data="/option", admin_url="tcp://option:2")
VARIABLES = Place("the environment", url="tcp://variable:1", data="/variable", admin_url="tcp://variable:2")
CONTEXT = Place("context 'prod'", url="tcp://context:1", admin_url="tcp://context:2")
NOTHING = Place("the command line")


def find(
    *places: Place,
    purpose: Purpose = Purpose.CLIENT,
    here: Here | None = HERE,
    running: tuple[RunningNode, ...] = (ELSEWHERE,),
    waits: bool = False,
) -> Target | None:
    return choose(purpose, places, lambda: here, lambda: running, waits=waits)


def test_the_first_place_that_names_a_node_wins_and_nothing_else_is_asked() -> None:
    def asked() -> Any:
        raise AssertionError("nobody had to ask")

    for places, url in (
        ((OPTIONS, VARIABLES), "tcp://option:1"),
        ((NOTHING, CONTEXT, VARIABLES), "tcp://context:1"),
    ):
        assert choose(Purpose.CLIENT, places, asked, lambda: [asked()]) == Target(url=url)
    assert choose(Purpose.OPERATOR, (NOTHING, VARIABLES), asked, lambda: [asked()]) == Target(
        url="tcp://variable:2"
    )


def test_an_address_goes_before_the_data_directory_that_the_same_place_names() -> None:
    assert find(Place("x", url="tcp://x:1", data="/x")) == Target(url="tcp://x:1")
    assert find(Place("x", data="/x"), VARIABLES) == Target(data="/x")


def test_without_a_name_the_node_of_the_working_directory_goes_before_the_others() -> None:
    assert find(NOTHING, NOTHING) == Target(data=HERE.data)


def test_the_only_node_that_runs_is_found_from_anywhere() -> None:
    assert find(here=None, running=(ELSEWHERE,)) == Target(data=ELSEWHERE.data)


def test_another_node_is_not_taken_for_the_one_of_the_working_directory_that_does_not_run() -> None:
    with pytest.raises(errors.UnavailableError) as caught:
        find(here=STOPPED, running=(ELSEWHERE,))
    assert str(caught.value).splitlines() == [
        "error 50308: Node Unreachable: the node of /srv/here does not run; 1 node runs:",
        "  elsewhere  /srv/elsewhere  tcp://127.0.0.1:2",
        " ('angarium up' starts it; choose another one with --data DIR, ANGARIUM_DATA=DIR,"
        " or 'angarium context use NAME')",
    ]
    with pytest.raises(errors.UnavailableError, match=r"does not run \('angarium up' starts it\)"):
        find(here=STOPPED, running=())
    assert find(VARIABLES, here=STOPPED) == Target(url="tcp://variable:1")


def test_a_command_that_waits_takes_the_node_of_the_working_directory_that_does_not_run() -> None:
    assert find(here=STOPPED, waits=True) == Target(data=STOPPED.data)


def test_without_any_node_there_is_nothing() -> None:
    assert find(here=None, running=()) is None


def test_of_several_nodes_none_is_taken_and_all_are_named() -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        find(here=None, running=(ELSEWHERE, STARTING))
    assert str(caught.value).splitlines() == [
        "error 40018: Invalid Argument: 2 nodes run:",
        "  elsewhere  /srv/elsewhere  tcp://127.0.0.1:2",
        "  third      /srv/t          starting",
        " (choose one: --data DIR, ANGARIUM_DATA=DIR, or 'angarium context use NAME')",
    ]


def test_of_very_many_nodes_some_are_named() -> None:
    many = tuple(RunningNode(f"n{number}", f"/{number}", "tcp://x:1") for number in range(25))
    with pytest.raises(errors.InvalidRequestError, match="25 nodes run") as caught:
        find(here=None, running=many)
    assert "and 5 more" in str(caught.value)
    assert "n20" not in str(caught.value)


@pytest.mark.parametrize(
    ("purpose", "place", "text"),
    [
        (Purpose.OPERATOR, Place("context 'p'", url="tcp://p:1"), "context 'p' has no address for operators"),
        (
            Purpose.CLIENT,
            Place("context 'p'", admin_url="tcp://p:1"),
            "context 'p' has no address for clients",
        ),
    ],
)
def test_a_context_that_names_half_leads_to_no_other_node(purpose: Purpose, place: Place, text: str) -> None:
    """What an operator deletes must not be another node's because the context has no address for operators."""
    with pytest.raises(errors.InvalidRequestError, match=text):
        find(place, purpose=purpose)
