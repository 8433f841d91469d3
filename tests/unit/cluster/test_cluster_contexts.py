"""The file of the contexts: what is written is read, and what is damaged is told with its line."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from angarium import errors
from cluster.commands.connecting import contexts
from cluster.commands.connecting.contexts import Context


def test_what_is_written_is_read_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "config" / "angarium" / "contexts.toml"
    assert contexts.load(file) == contexts.Contexts()
    prod = Context(url="tcp://node-1.example:55555", vpn="orders", user="alice", password_file="/secrets/p")
    with contexts.edit(file) as found:
        found.context["prod"] = prod
        found.current = "prod"
    assert contexts.load(file) == contexts.Contexts(current="prod", context={"prod": prod})
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_an_edit_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    with contexts.edit(file) as found:
        found.context["a"] = Context(url="tcp://a:1")

    def remove_missing() -> None:
        with contexts.edit(file) as found:
            found.context["b"] = Context(url="tcp://b:1")
            found.named("missing")

    with pytest.raises(errors.NotFoundError):
        remove_missing()
    assert contexts.load(file).context.keys() == {"a"}


def test_edits_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"

    def add(name: str) -> None:
        with contexts.edit(file) as found:
            found.context[name] = Context(url="tcp://a:1")

    threads = [threading.Thread(target=add, args=(f"c{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contexts.load(file).context) == 8


def test_an_unknown_context_is_told_with_those_that_there_are() -> None:
    with pytest.raises(errors.NotFoundError, match="contexts: none yet"):
        contexts.Contexts().named("x")
    with pytest.raises(errors.NotFoundError, match="contexts: a, b"):
        contexts.Contexts(context={"b": Context(), "a": Context()}).named("x")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("current = \n", 1, "Invalid value"),
        ("[context.a]\nurl = 'tcp://a:1'\nurl = 'tcp://a:2'\n", 3, "Cannot overwrite a value"),
        ("# mine\n\n[context.a\n", 3, "Expected"),
        ("a = [\n\n", 3, "Invalid value"),
        ("\n\ncurrent = 'gone'\n", 3, "'gone' is none of those below"),
        ("current = 3\n", 1, "Expected `str`, got `int`"),
        ("\nnothing = 1\n", 2, "unknown field `nothing`"),
        ("[context.a]\nurl = '1'\n\n[context.b]\nurl = 1\n", 5, "Expected `str`, got `int`"),
        ("[context.a]\nurl = '1'\n[context.b]\npassword = 'x'\n", 4, "unknown field `password`"),
        ("[context.'a b']\nurl = '1'\n", 1, "Expected `str` matching regex"),
        ("\ncontext = 3\n", 2, "Expected `object`, got `int`"),
    ],
)
def test_a_damaged_file_is_told_with_file_line_and_what_to_do(
    text: str, line: int, what: str, tmp_path: Path
) -> None:
    file = tmp_path / "contexts.toml"
    file.write_text(text)
    with pytest.raises(errors.InvalidRequestError) as caught:
        contexts.load(file)
    assert caught.value.code == errors.INVALID_CONFIGURATION
    assert caught.value.detail.startswith(f"{file}, line {line}: ")
    assert what in caught.value.detail
    assert "mend it there, or remove the file" in caught.value.advice
    with pytest.raises(errors.InvalidRequestError), contexts.edit(file):
        pass
    assert file.read_text() == text, "what is damaged is not written over"


def test_what_is_no_text_or_far_too_much_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    file.write_bytes(b"current = ''\n\xff\n")
    with pytest.raises(errors.InvalidRequestError, match=r"line 2: it is no text in UTF-8"):
        contexts.load(file)
    file.write_bytes(b"#" * (contexts.FILE_BYTES_MAX + 10))
    with pytest.raises(errors.InvalidRequestError, match=r"more than 1,000,000 bytes"):
        contexts.load(file)
    with pytest.raises(errors.InvalidRequestError, match="Is a directory"):
        contexts.load(tmp_path)


def test_the_file_is_where_the_configuration_of_the_user_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    usual = Path("/home/alice/.config/angarium/contexts.toml")
    assert contexts.path({}) == contexts.path({"XDG_CONFIG_HOME": "relative"}) == usual
    assert contexts.path({"XDG_CONFIG_HOME": "/etc/alice"}) == Path("/etc/alice/angarium/contexts.toml")
