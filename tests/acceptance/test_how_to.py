"""The how-to pages whose commands need nothing but a node work as they are printed, and that of the management API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.document import Block, Desk, blocks
from tests.acceptance.installation import ROOT, lend
from tests.share import is_long

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.installation import Installation

HOW_TO = ROOT / "docs" / "how-to"
#: A plugin of pytest, with which the nodes of its tests are forks.
QUICK_NODES = """from angarium_server import launch
launch.command = lambda *arguments: [{program!r}, *arguments]
"""

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R274"), pytest.mark.timeout(300)]


def typed(*commands: str) -> Block:
    """Give a block that no page has."""
    return Block("console", "", "".join(f"$ {command}\n" for command in commands), "this test")


def test_a_service_is_tested_as_the_page_says(desk: Desk, installation: Installation, quick: Path) -> None:
    """With --long the nodes are started as usual."""
    lend(installation.python, "pytest", "iniconfig", "packaging", "pluggy", "pygments")
    if not is_long():
        (quick / "quick_nodes.py").write_text(QUICK_NODES.format(program=str(quick / "angarium")))
        desk.environment |= {"PYTHONPATH": str(quick), "PYTEST_ADDOPTS": "-p quick_nodes"}
    with desk.reader(listen=False) as reader:
        start = typed("source .venv/bin/activate", "mkdir service", "cd service", "touch pytest.ini")
        reader.read([start, *blocks(HOW_TO / "testing-your-service.md")])


def test_a_node_is_backed_up_and_restored_as_the_page_says(quick_desk: Desk) -> None:
    before = typed(
        "source .venv/bin/activate",
        "angarium up --detach",
        "angarium queue create orders --subscription 'orders/>'",
        "angarium pub orders/1 'two pretzels' --mode persistent",
    )
    after = typed("angarium consume orders --count 1 --raw", "angarium down")
    expected = Block("text", "", "two pretzels\n", "this test")
    with quick_desk.reader() as reader:
        page = blocks(HOW_TO / "back-up-and-restore.md")
        reader.read([before, *page, after, expected])


def test_objects_are_kept_in_a_file_as_the_page_says(quick_desk: Desk) -> None:
    """A plan that finds something ends with 2, which is no failure of the reader's shell."""
    with quick_desk.reader() as reader:
        start = typed("source .venv/bin/activate", "angarium up --detach")
        page = blocks(HOW_TO / "keep-objects-in-a-file.md")
        reader.read([start, *page, typed("angarium down")])


def test_a_node_is_secured_as_the_page_says(quick_desk: Desk) -> None:
    """The node listens on the loopback address here, from where `default` could come in."""
    with quick_desk.reader(listen=False) as reader:
        start = typed("source .venv/bin/activate", "mkdir secured", "cd secured")
        page = blocks(HOW_TO / "secure.md")
        here = [replace(one, text=one.text.replace("0.0.0.0", "127.0.0.1")) for one in page]
        reader.read([start, *here, typed("angarium down")])


def test_the_management_api_answers_as_its_page_says(quick_desk: Desk) -> None:
    with quick_desk.reader() as reader:
        page = blocks(ROOT / "docs" / "management.md")
        reader.read([typed("source .venv/bin/activate"), *page, typed("angarium down")])


def test_a_house_is_connected_as_the_page_says(quick_desk: Desk, installation: Installation) -> None:
    lend(installation.python, "paho-mqtt")
    with quick_desk.reader() as reader:
        start = typed("source .venv/bin/activate", "mkdir house", "cd house")
        others = [
            Block("console", name, "$ cd house\n$ source ../.venv/bin/activate\n", "this test")
            for name in ("Lamp", "Clock", "Meter")
        ]
        page = blocks(HOW_TO / "home-automation.md")
        here = [replace(one, text=one.text.replace("0.0.0.0", "127.0.0.1")) for one in page]
        ends = [Block("console", name, "^C\n", "this test") for name in ("Lamp", "Clock")]
        reader.read([start, *others, *here, *ends, typed("angarium down")])


def test_our_side_of_each_comparison_works(quick_desk: Desk) -> None:
    """The Python that imports the client is ours; the rest needs the other broker. All have a queue of one name."""
    with quick_desk.reader() as reader:
        reader.read([typed("source .venv/bin/activate", "angarium up --detach")])
        for page in ("rabbitmq", "nats", "kafka", "solace"):
            examples = blocks(ROOT / "docs" / "coming-from" / f"{page}.md")
            ours = [one for one in examples if one.language == "python" and "angarium" in one.text]
            assert ours
            for example in ours:
                reader.read(
                    [
                        Block("python", "worker.py", example.text, example.place),
                        typed("python worker.py"),
                        Block("text", "", "orders/berlin/7 b'two pretzels'\n", example.place),
                        Block("console", "", "^C\n$ angarium queue delete billing --yes\n", "this test"),
                    ]
                )
        reader.read([typed("angarium down")])
