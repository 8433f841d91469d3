"""The proof of a member: good for one wish, one node and some minutes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from angarium import errors
from cluster.join.frames import PROOF_AGE_MS, Wish, check_proof, prove

SECRET = "correct horse battery staple"
WISH = Wish(node="c", cluster="trains", addresses=["tls://10.0.0.3:55555"], to="b", time_ms=5_000)


def check(
    wish: Wish, secret: str = SECRET, cluster: str = "trains", node: str = "b", now_ms: int = 5_000
) -> None:
    check_proof(wish, secret, cluster, node, now_ms)


def test_a_member_is_believed_while_the_clocks_agree() -> None:
    proven = prove(WISH, SECRET)
    for now_ms in (5_000, 5_000 + PROOF_AGE_MS, 5_000 - PROOF_AGE_MS):
        check(proven, now_ms=now_ms)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(proven), type=Wish) == proven
    assert SECRET.encode() not in msgspec.msgpack.encode(proven)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"secret": "another secret of the same length"}, errors.LINK_UNAUTHORIZED),
        ({"secret": ""}, errors.LINK_UNAUTHORIZED),
        ({"cluster": "ships"}, errors.CLUSTER_MISMATCH),
        ({"node": "d"}, errors.LINK_WRONG_NODE),
        ({"now_ms": 5_001 + PROOF_AGE_MS}, errors.LINK_UNAUTHORIZED),
    ],
)
def test_a_proof_is_good_for_its_cluster_its_node_and_its_time(given: dict[str, Any], code: int) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        check(prove(WISH, SECRET), **given)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "changed",
    [
        {"node": "x"},
        {"addresses": ["tls://6.6.6.6:1"]},
        {"wish": "leave"},
        {"to": "x"},
        {"time_ms": 6_000},
        {"server_name": "x"},
    ],
)
def test_nothing_of_a_wish_can_be_changed(changed: dict[str, Any]) -> None:
    with pytest.raises(errors.UnauthorizedError):
        check(msgspec.structs.replace(prove(WISH, SECRET), **changed))


def test_a_proof_with_an_empty_secret_is_none() -> None:
    with pytest.raises(errors.UnauthorizedError):
        check(prove(WISH, ""), secret="")
