"""The options of the Spark source and writers: typed, complete, and named when they are wrong."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from angarium.errors import UNAUTHORIZED, InvalidRequestError, UnauthorizedError, error_for
from angarium.spark.connecting import blaming
from angarium.spark.options import (
    BATCH,
    EARLIEST,
    LATEST,
    OPTIONS,
    STREAM,
    STREAM_WRITE,
    WRITE,
    columns_of,
    list_text,
    settings,
)
from angarium.spark.schema import NAMES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requirement("R221")

SECRET = "open sesame"


def test_names_come_in_any_case_and_values_get_their_types() -> None:
    """Spark lower-cases the names of options before a source sees them."""
    found = settings(
        STREAM,
        {
            "queue": "a, b",
            "maxmessagespertrigger": "500",
            "FAILONDATALOSS": "False",
            "leaseSeconds": "1.5",
            "startingposition": "Latest",
        },
    )
    assert found["queue"] == ("a", "b")
    assert found["maxMessagesPerTrigger"] == 500
    assert found["failOnDataLoss"] is False
    assert found["leaseSeconds"] == 1.5
    assert found["startingPosition"] == LATEST


@pytest.mark.parametrize("use", [BATCH, STREAM, WRITE, STREAM_WRITE])
def test_what_is_not_given_has_its_default(use: str) -> None:
    found = settings(use, {})
    assert {option.name for option in OPTIONS if use in option.uses} == set(found.values)
    assert found["vpn"] == "default"


@pytest.mark.parametrize("names", [("a,b/>",), ("[x]", "y"), (" padded ", 'quo"te')])
def test_names_with_any_character_come_as_a_json_array(names: tuple[str, ...]) -> None:
    assert settings(STREAM, {"topics": list_text(names)})["topics"] == names


@pytest.mark.parametrize("text", ["[", "[]", "[1]", '["a", ""]', '["a", "a"]', "[x]"])
def test_an_array_of_other_things_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"option topics: it is .*JSON array"):
        settings(STREAM, {"topics": text})


def test_a_start_is_a_word_or_a_time() -> None:
    """A time without zone is UTC, wherever the driver runs."""
    for text, value in (
        ("earliest", EARLIEST),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01 00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
    ):
        assert settings(STREAM, {"startingposition": text})["startingPosition"] == value


def test_an_unknown_option_is_named_with_those_like_it() -> None:
    with pytest.raises(InvalidRequestError, match=r"option maxmesagespertrigger: .*maxMessagesPerTrigger"):
        settings(STREAM, {"maxmesagespertrigger": "5"})


def test_an_option_of_another_use_says_what_it_is_for() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"option startingPosition: it is for readStream, not for read"
    ):
        settings(BATCH, {"startingposition": "latest"})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("maxmessagespertrigger", "0", "whole number from 1"),
        ("maxmessagespertrigger", "many", "whole number from 1"),
        ("maxbytespertrigger", "-1", "whole number from 1"),
        ("failondataloss", "perhaps", "`true` or `false`"),
        ("timeoutseconds", "0", "seconds above 0"),
        ("timeoutseconds", "inf", "seconds above 0"),
        ("timeoutseconds", "nan", "seconds above 0"),
        ("leaseseconds", "0.5", "from 1 to 2592000"),
        ("leaseseconds", "2592001", "from 1 to 2592000"),
        ("startingposition", "yesterday", "a time such as"),
        ("queue", "a,,b", "separated by commas"),
        ("queue", "a,a", "given twice"),
        ("columns", "topic,colour", "unknown columns colour"),
        ("vpn", " ", "a text"),
    ],
)
def test_a_value_that_is_not_possible_is_named_with_what_is(name: str, text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as caught:
        settings(STREAM, {name: text})
    assert name in str(caught.value).lower()


def test_a_secret_comes_from_an_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n", encoding="utf-8")
    monkeypatch.setenv("QUEUE_SECRET", SECRET)
    assert settings(BATCH, {}).secret() is None
    assert settings(BATCH, {"password": SECRET}).secret() == SECRET
    assert settings(BATCH, {"passwordfile": str(tmp_path / "secret")}).secret() == SECRET
    assert settings(BATCH, {"passwordenv": "QUEUE_SECRET"}).secret() == SECRET


def test_two_places_for_one_secret_are_refused() -> None:
    with pytest.raises(
        InvalidRequestError, match="option password: it is given beside passwordFile"
    ) as caught:
        settings(BATCH, {"password": SECRET, "passwordfile": "/etc/secret"})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("passwordFile", "/nowhere/at/all"), ("passwordEnv", "NO_SUCH_VARIABLE")]
)
def test_a_secret_that_is_nowhere_names_its_option(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"option {name}: .*{value}"):
        settings(BATCH, {name: value}).secret()


@pytest.mark.requirement("R224")
def test_a_token_comes_from_an_option_or_a_file_that_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    assert settings(BATCH, {}).token() is None
    assert settings(WRITE, {"token": "first"}).token() == "first"
    source = settings(STREAM, {"tokenfile": str(file)}).token()
    assert callable(source)
    assert source() == "first"
    file.write_text("second\n", encoding="utf-8")
    assert source() == "second"


def test_a_token_file_that_is_not_there_names_its_option() -> None:
    with pytest.raises(InvalidRequestError, match=r"option tokenFile: /nowhere cannot be read"):
        settings(BATCH, {"tokenfile": "/nowhere"}).token()


@pytest.mark.parametrize("given", ["password", "passwordfile", "passwordenv", "tokenfile"])
def test_a_token_beside_another_secret_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequestError, match="it is given beside") as caught:
        settings(BATCH, {"token": SECRET, given: "x"})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("option", ["token", "tokenFile", "username"])
def test_a_refused_login_names_the_option_that_says_who_connects(option: str) -> None:
    value = {"token": SECRET, "tokenFile": "/run/token", "username": "bob"}[option]
    with (
        pytest.raises(UnauthorizedError, match=f"option {option}: ") as caught,
        blaming(settings(BATCH, {option: value})),
    ):
        raise error_for(UNAUTHORIZED)
    assert SECRET not in str(caught.value)


def test_settings_travel_and_show_no_secret() -> None:
    assert SECRET not in repr(settings(BATCH, {"token": SECRET}))
    found = settings(BATCH, {"queue": "a", "password": SECRET})
    assert SECRET not in repr(found)
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert copy.secret() == SECRET


def test_columns_are_known_before_the_use_is() -> None:
    assert columns_of({}) == NAMES
    assert columns_of({"columns": "topic, payload"}) == ("topic", "payload")
