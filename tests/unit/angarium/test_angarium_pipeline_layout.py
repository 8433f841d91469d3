"""Which directory of an archive a topic goes into, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.pipeline.dataset import layout

pytestmark = pytest.mark.requirement("R221")


@pytest.mark.parametrize(
    ("topic", "levels", "directory"),
    [
        ("orders/eu/7", 1, "topic_1=orders"),
        ("orders/eu/7", 2, "topic_1=orders/topic_2=eu"),
        ("orders", 2, "topic_1=orders/topic_2=~-"),
        ("/x", 1, "topic_1=~"),
        ("a b/ö*", 2, "topic_1=a~20b/topic_2=~C3~B6~2A"),
        ("../..", 2, "topic_1=../topic_2=.."),
        ("_a/~-", 2, "topic_1=~5Fa/topic_2=~7E-"),
        ("__HIVE_DEFAULT_PARTITION__", 1, "topic_1=~5F_HIVE_DEFAULT_PARTITION__"),
        ("a", 0, ""),
    ],
)
def test_a_topic_has_a_directory(topic: str, levels: int, directory: str) -> None:
    assert layout.topic_directory(topic, levels) == directory


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=40))
def test_a_name_is_ascii_and_gives_the_level_back(level: str) -> None:
    name = layout.name_of(level)
    assert name.isascii()
    assert not set(name) & set("/\\:*?\"<>|{}[]%='# ")
    assert not name.startswith("_")
    if "~~" in name:
        with pytest.raises(ValueError, match="column topic"):
            layout.level_of(name)
    else:
        assert layout.level_of(name) == level


def test_a_level_that_is_not_there_differs_from_an_empty_one() -> None:
    assert layout.level_of(layout.name_of(None)) is None
    assert layout.level_of(layout.name_of("")) == ""


def test_long_levels_stay_within_the_limit_and_apart() -> None:
    names = {layout.name_of("ü" * 100 + end) for end in ("a", "b")}
    assert len(names) == 2
    assert all(len(name) <= layout.NAME_MAX for name in names)


def test_what_stands_for_several_topics_is_no_level() -> None:
    with pytest.raises(ValueError, match="stands for no single level"):
        layout.level_of(layout.OTHERS)


def test_directories_beyond_the_bound_share_one() -> None:
    wanted = [f"topic_1={name}" for name in "abcde"]
    found = layout.within_bound(wanted, ["topic_1=e", "topic_1=x"], 4, 1)
    assert found == {
        "topic_1=a": "topic_1=a",
        "topic_1=b": "topic_1=b",
        "topic_1=c": "topic_1=~+",
        "topic_1=d": "topic_1=~+",
        "topic_1=e": "topic_1=e",
    }


def test_the_shared_directory_counts_for_none() -> None:
    found = layout.within_bound(["topic_1=a"], ["topic_1=~+"], 1, 1)
    assert found == {"topic_1=a": "topic_1=a"}
