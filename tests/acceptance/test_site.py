"""The site of the documentation is built in one command, finds what is searched, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 110

#: Unit tests follow links, and compare navigation and API reference with what there is.
pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the built site."""
    if importlib.util.find_spec("zensical") is None:
        if "CI" in os.environ:
            pytest.fail("the extra docs is not installed")
        pytest.skip("the extra docs is not installed")
    output = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(ROOT / "scripts" / "site"), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("client", ["angarium.connect", "angarium.Client.publish", "angarium.Client.subscribe"]),
        ("consuming", ["angarium.Subscription.receive", "angarium.Flow.receive"]),
        ("publishing", ["angarium.Producer.send", "angarium.Stage"]),
        ("messages", ["angarium.Message.topic", "angarium.GuaranteedMessage.accept"]),
        ("errors", ["angarium.AngariumError", "angarium.TimeoutExpiredError"]),
        ("blocking", ["angarium.blocking.connect", "angarium.blocking.Client.publish"]),
        ("testing", ["angarium_server.testing.Node.restart"]),
        ("pipeline", ["angarium.pipeline.archive.archive"]),
    ],
)
def test_the_api_reference_is_made_from_docstrings(site: Path, page: str, names: list[str]) -> None:
    text = (site / "api" / page / "index.html").read_text(encoding="utf-8")
    assert [name for name in names if f'id="{name}"' not in text] == []


@pytest.mark.parametrize(
    "place",
    ["", "tutorial/", "how-to/docker/", "coming-from/kafka/", "troubleshooting/", "CHANGELOG/", "deploy/"],
)
def test_a_page_is_there_with_the_version(site: Path, place: str) -> None:
    text = (site / place / "index.html").read_text(encoding="utf-8")
    assert re.search(r"Angarium \d+\.\d+", text)


def test_the_search_finds_pages_and_the_api(site: Path) -> None:
    entries = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    text = json.dumps(entries)
    assert "graceful shutdown" in text.lower()
    assert "GuaranteedMessage" in text


def test_no_page_loads_anything_from_another_place(site: Path) -> None:
    scripts = r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//'
    styles = r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+//'
    loading = re.compile(f"{scripts}|{styles}")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [str(page) for page in pages if loading.search(page.read_text(encoding="utf-8"))] == []
    # The theme asks the host of the sources for its stars if it knows it.
    assert [
        str(page) for page in pages if 'data-md-component="source"' in page.read_text(encoding="utf-8")
    ] == []
