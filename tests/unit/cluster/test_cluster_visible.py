"""Texts of clients on a terminal."""

from __future__ import annotations

import pytest

from angarium_server.visible import visible
from cluster.commands.terminal.output import to_json
from cluster.commands.terminal.table import table

STEERING = ["\x1b", "\x07", "\n", "\r", "\x7f", "\x9b", "\u2028", "\u202a", "\u202e", "\u2066", "\u2069"]


@pytest.mark.parametrize("character", STEERING)
def test_names_in_sentences_lists_and_json_do_not_steer(character: str) -> None:
    name = f"a{character}b"
    drawn = table([{"name": name}], ("name",), 80)
    for text in (visible(name), to_json({"name": name}), *drawn.body):
        assert character not in text
        assert f"{ord(character):02x}" in text or "\\n" in text or "\\r" in text


def test_letters_of_all_languages_stay() -> None:
    assert visible("Zürich/東京/القاهرة 🥨") == "Zürich/東京/القاهرة 🥨"
