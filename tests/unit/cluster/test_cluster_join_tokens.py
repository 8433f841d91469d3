"""Join tokens: what is written in one, and whom one admits."""

from __future__ import annotations

import pytest

from angarium import errors
from cluster.join import tokens
from cluster.join.tokens import Tokens, Written

WRITTEN = Written(b"idnumb", b"s" * 16, bytes(range(32)))
NOW_S = 1_000


def made(*, uses: int = 1, expires_s: int = 60) -> Tokens:
    known = Tokens()
    known.take(known.create(WRITTEN, NOW_S, expires_s, uses, ""))
    return known


def admit(known: Tokens, node: str, key: str, now_s: int = NOW_S) -> None:
    known.take(known.use(known.find(WRITTEN.id, WRITTEN.secret, now_s), node, key, now_s))


def refusal(
    known: Tokens, node: str = "n", key: str = "k", now_s: int = NOW_S, secret: bytes = WRITTEN.secret
) -> str:
    with pytest.raises(errors.UnauthorizedError) as caught:
        known.use(known.find(WRITTEN.id, secret, now_s), node, key, now_s)
    assert caught.value.code == errors.JOIN_REFUSED
    return caught.value.detail


def test_a_token_is_read_as_it_was_written() -> None:
    assert tokens.read(WRITTEN.text()) == WRITTEN
    assert WRITTEN.text().startswith("angarium1.")


def test_a_part_of_a_token_is_told_from_a_whole_one_without_repeating_it() -> None:
    text = WRITTEN.text()
    changed = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    for wrong in (
        "",
        "T",
        text[:-1],
        text[1:],
        text + "AAAA",
        text.replace("angarium1", "angarium2"),
        changed,
        text + "!",
    ):
        with pytest.raises(errors.InvalidRequestError) as caught:
            tokens.read(wrong)
        assert caught.value.code == errors.INVALID_ARGUMENT
        assert len(wrong) < 10 or wrong not in str(caught.value)


@pytest.mark.requirement("R285")
def test_a_token_admits_as_many_nodes_as_it_says() -> None:
    known = made(uses=2)
    admit(known, "b", "kb")
    admit(known, "c", "kc")
    assert "'b', 'c'" in refusal(known, "d", "kd")
    assert known.rows(NOW_S)[0]["nodes"] == ["b", "c"]
    assert known.refused_total == 1


@pytest.mark.requirement("R285")
def test_a_node_whose_answer_was_lost_asks_again_with_the_same_key_and_nobody_else_does() -> None:
    known = made()
    admit(known, "b", "kb")
    admit(known, "b", "kb", NOW_S + 59)
    assert known.rows(NOW_S)[0]["uses"] == 1
    refusal(known, "b", "another key")


@pytest.mark.requirement("R285")
def test_a_token_ends() -> None:
    known = made()
    admit(known, "b", "kb", NOW_S + 59)
    assert "ended" in refusal(known, "b", "kb", NOW_S + 60)
    assert known.rows(NOW_S + 60) == []
    # Those that have ended go when the others are written the next time.
    assert [one.id for one in known.create(WRITTEN._replace(id=b"second"), NOW_S + 60, 60, 1, "")] == [
        b"second".hex()
    ]


def test_a_wrong_secret_does_not_tell_whether_there_is_such_a_token() -> None:
    known = made()
    wrong = refusal(known, secret=b"w" * 16)
    assert wrong == refusal(Tokens())
    admit(known, "b", "kb")
    assert refusal(known, secret=b"w" * 16) == wrong


def test_nothing_that_is_kept_or_shown_has_the_secret() -> None:
    known = made()
    (kept,) = known.use(known.find(WRITTEN.id, WRITTEN.secret, NOW_S), "b", "kb", NOW_S)
    assert WRITTEN.secret not in kept.digest
    assert "digest" not in known.rows(NOW_S)[0]
    assert len(kept.digest) == 32


def test_a_token_that_was_removed_admits_nobody() -> None:
    known = made()
    known.take(known.remove(WRITTEN.id.hex(), NOW_S))
    refusal(known)
    with pytest.raises(errors.NotFoundError):
        known.remove(WRITTEN.id.hex(), NOW_S)


def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 1)
    with pytest.raises(errors.ConflictError):
        made().create(WRITTEN, NOW_S, 60, 1, "")
