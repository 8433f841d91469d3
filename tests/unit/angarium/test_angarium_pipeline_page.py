"""The page of a report: whole without a network, and deaf to what hostile topics say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from angarium.pipeline.report import page as page_module
from angarium.pipeline.report.page import embedded_json, render_page

pytestmark = pytest.mark.requirement("R221")

OWN = Path(page_module.__file__).parent
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=https://evil.example/x onerror=alert(1)>',
    "</title><base href=//evil.example>",
    "\u2028\u202e\x1b[31m\x00",
    "&lt;b&gt;",
    "\ud800",
]


class Elements(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._tag = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._tag = tag
        self.texts.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self._tag:
            self.texts[self._tag][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def render(
    figures: dict[str, Any], title: str = "Report", refresh_s: float | None = None
) -> tuple[str, Elements]:
    page = render_page(figures, title=title, source="an archive", made_ms=0, refresh_s=refresh_s)
    return page, Elements(page)


@pytest.fixture(scope="module")
def hostile() -> tuple[str, Elements]:
    rows = [{"topic": topic, "messages": 1} for topic in HOSTILE]
    return render({"totals": {"messages": 1}, "topics": {"rows": rows}}, title="".join(HOSTILE[:4]))


def test_no_element_refers_to_anything_outside(hostile: tuple[str, Elements]) -> None:
    _, elements = hostile
    refers = {"src", "href", "srcset", "data", "action", "poster", "background", "style"}
    assert [(tag, attributes) for tag, attributes in elements.found if refers & attributes.keys()] == []
    styles = "".join(elements.texts["style"])
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_browser_may_run_these_two_scripts_and_fetch_nothing(hostile: tuple[str, Elements]) -> None:
    _, elements = hostile
    (policy,) = [
        attributes["content"]
        for _, attributes in elements.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert "connect-src" not in rules
    allowed = {base64.b64decode(found) for found in re.findall(r"'sha256-([^']+)'", rules["script-src"])}
    data, *scripts = elements.texts["script"]
    assert {hashlib.sha256(script.encode()).digest() for script in scripts} == allowed
    assert "unsafe" not in rules["script-src"]
    assert len(scripts) == 2
    assert json.loads(data)["title"]


def test_hostile_topics_stay_text(hostile: tuple[str, Elements]) -> None:
    page, elements = hostile
    tags = {tag for tag, _ in elements.found}
    assert tags == {"html", "head", "meta", "title", "style", "body", "main", "noscript", "script"}
    figures = json.loads(elements.texts["script"][0])
    assert [row["topic"] for row in figures["topics"]["rows"]] == HOSTILE
    assert elements.texts["title"][0] == "".join(HOSTILE[:4])
    data = page.partition('id="figures">')[2].partition("</script>")[0]
    assert set("<>&") & set(data) == set()
    assert data.isascii()


def test_our_script_makes_text_nodes_of_names() -> None:
    _, elements = render({"totals": {"messages": 0}})
    script = elements.texts["script"][2]
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttp",
    ):
        assert way not in script
    assert "http" not in script


@pytest.mark.parametrize(("numbered", "expected"), [(0, False), (3, True)])
def test_a_page_explains_numbering_where_there_is_some(numbered: int, *, expected: bool) -> None:
    _, elements = render(
        {"totals": {"messages": 1}, "sequences": {"totals": {"numbered": numbered}, "rows": [], "gaps": []}}
    )
    terms = {term for term, _ in json.loads(elements.texts["script"][0])["glossary"]}
    assert "latency" in terms
    assert (terms & {"missing", "gap", "duplicate", "out of order", "restart"} != set()) is expected


def test_a_live_page_loads_itself_again_and_another_one_does_not() -> None:
    for refresh_s, expected in ((None, []), (0.5, ["2"]), (30, ["30"])):
        _, elements = render({"totals": {"messages": 0}}, refresh_s=refresh_s)
        found = [one["content"] for _, one in elements.found if one.get("http-equiv") == "refresh"]
        assert found == expected


def test_figures_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded_json({"rate": float("nan")})


@pytest.mark.requirement("R206")
@pytest.mark.skipif(shutil.which("node") is None, reason="node, which checks the script, is not installed")
def test_the_script_is_one() -> None:
    found = subprocess.run(
        ["node", "--check", str(OWN / "report.js")], capture_output=True, text=True, timeout=30, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.requirement("R206")
def test_the_style_sheet_is_rules_whose_braces_match() -> None:
    """Each declaration has a name and a value, and names that are used are declared."""
    sheet = re.sub(r"/\*.*?\*/", "", (OWN / "report.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    rule = re.compile(r"[^{};]+\{([^{}]*)\}")
    declarations = [one.strip() for body in rule.findall(sheet) for one in body.split(";") if one.strip()]
    while rule.search(sheet):  # Rules inside of others, as of @media, are taken out first.
        sheet = rule.sub("", sheet)
    assert sheet.strip() == ""
    assert [one for one in declarations if not re.fullmatch(r"[-a-z]+:\s*\S.*", one, re.DOTALL)] == []
    assert set(re.findall(r"var\((--[a-z-]+)\)", "".join(declarations))) <= {
        one.partition(":")[0] for one in declarations
    }
