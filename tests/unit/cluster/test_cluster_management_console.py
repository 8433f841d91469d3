"""The files of the console: which are given, how, and that the page is made of nothing but them."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

import pytest
from aiohttp.test_utils import make_mocked_request

from cluster.management.console import files

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

VENDOR: Final = files.FOLDER / "vendor"
OURS: Final = [path for path in sorted(files.FOLDER.rglob("*.js")) if path.parent != VENDOR]
PAGE: Final = files.files()[("",)].body.decode()
VERSION: Final = next(path[1] for path in files.files() if path != ("",))
#: As for Python: what one can take in of a module.
LINES_MAX: Final = 400


def get(*path: str, **headers: str) -> web.Response:
    found = files.find(path)
    assert found, path
    return files.answer(make_mocked_request("GET", "/", headers), found)


def test_each_file_has_its_type_and_stays_at_its_path_for_ever() -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
    for path in files.FOLDER.rglob("*.*"):
        pieces = path.relative_to(files.FOLDER).parts
        found = files.find(("console", VERSION, *pieces))
        if path.suffix not in kinds:
            assert found is None, path
            continue
        answer = get("console", VERSION, *pieces)
        assert answer.body == path.read_bytes()
        assert answer.content_type == kinds[path.suffix]
        assert answer.charset == "utf-8"
        assert "immutable" in answer.headers["Cache-Control"]


def test_the_page_is_asked_for_each_time_and_sent_once() -> None:
    first = get("")
    assert first.content_type == "text/html"
    assert first.headers["Cache-Control"] == "no-cache"
    again = get("", **{"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, None)
    assert get("", **{"If-None-Match": '"another"'}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("", ""),
        ("index.html",),
        ("console",),
        ("console", VERSION),
        ("console", VERSION, ""),
        ("console", VERSION, "index.html"),
        ("console", VERSION, "vendor"),
        ("console", VERSION, "vendor", "..", "app.js"),
        ("console", VERSION, "..", "files.py"),
        ("console", VERSION, "vendor/uplot.js"),
        ("console", VERSION, "app.js", ""),
        ("console", VERSION, "app.js\0"),
        ("console", VERSION.upper() + "x", "app.js"),
        ("console", "..", "static", "app.js"),
        ("/etc/passwd",),
    ],
)
def test_no_other_path_leads_to_a_file(path: tuple[str, ...]) -> None:
    assert files.find(path) is None


def test_the_version_changes_with_each_name_and_content() -> None:
    def version(**found: bytes) -> str:
        return files.version_of({files.FOLDER / name: body for name, body in found.items()})

    assert len({version(a=b"1"), version(a=b"2"), version(b=b"1"), version(a=b"1", b=b"")}) == 4
    assert version(a=b"1", bc=b"2") != version(a=b"1", b=b"c2")


def test_the_policy_allows_nothing_in_the_page_and_nobody_else() -> None:
    policy = get("").headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    sources = {word for part in policy.split("; ") for word in part.split()[1:]}
    assert sources == {"'none'", "'self'", "'script'"}


def test_the_page_loads_files_that_are_there_and_has_no_script_of_its_own() -> None:
    for address in re.findall(r'(?:href|src)="([^"]*)"', PAGE):
        assert files.find(address[1:].split("/")), address
    assert re.findall(r"<script(?![^>]*\bsrc=)", PAGE) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", PAGE)
    assert PAGE.count("modulepreload") == len(list(files.FOLDER.rglob("*.js")))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_module_imports_files_and_makes_no_markup_of_texts(path: Path) -> None:
    text = path.read_text()
    imported = re.findall(r"""^\s*(?:import|export)[^;]*?from "([^"]*)";""", text, re.MULTILINE | re.DOTALL)
    for address in imported:
        assert address.startswith((".", "..")), address
        assert (path.parent / address).resolve().is_file(), address
    forbidden = re.findall(
        r"innerHTML|dangerouslySetInnerHTML|insertAdjacentHTML|\beval\(|new Function", text
    )
    assert forbidden == []
    assert len(text.splitlines()) <= LINES_MAX
    assert text.startswith("// "), "say what it is for"


def test_what_others_made_is_as_they_made_it_with_its_licence() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    told = {one["file"]: one["sha256"] for one in (*manifest["files"], *manifest["licenses"])}
    there = {path.name for path in VENDOR.iterdir()} - {"manifest.json"}
    assert set(told) == there
    for name, digest in told.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    licences = {one["file"] for one in manifest["licenses"]}
    assert all(one["licenses"] and licences.issuperset(one["licenses"]) for one in manifest["files"])
