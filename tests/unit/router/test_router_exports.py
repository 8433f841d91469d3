"""What a node wants of its neighbours is counted in steps when the first of them comes, while it changes."""

from __future__ import annotations

import random

import pytest

from angarium.topic import parse_filter
from router.links.exports import SUBSCRIPTION_COST, VpnExports
from router.sessions.interest import Interest
from tests.unit.router.wired_mesh import WiredLink, WiredMesh

pytestmark = pytest.mark.requirement("R278")

SEEDS = 60
FILTERS = ("a", "#noexport/a", "#share/g/a", "b", "c/>", "#share/g/c/>", "d/*", "e")


class Member:
    """A session or an endpoint, as far as it is counted."""

    def __init__(self, priority: int) -> None:
        self.network_priority = priority
        self.link = None


class Crowd:
    """Members that come and go, in two Message VPNs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.interest: Interest[Member] = Interest()
        self.members = [Member(1 + n % 4) for n in range(12)]
        self.there: set[tuple[int, Member, str]] = set()

    def change(self) -> None:
        """Let one subscription come or go."""
        one = self.rng.choice((1, 1, 2)), self.rng.choice(self.members), self.rng.choice(FILTERS)
        vpn_id, member, text = one
        parsed = parse_filter(text)
        found = self.interest.find(vpn_id, parsed, deliver_always=False)
        if one in self.there:
            assert found is not None
            self.interest.leave(found, member, text)
        else:
            made = found or self.interest.create(vpn_id, parsed, False, bytes(1 << 14))
            self.interest.join(made, member, text)
        self.there ^= {one}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_changes_while_it_is_counted_counts_once(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(crowd.rng.randrange(120)):
        crowd.change()
    exports = VpnExports(1, crowd.interest.filters)
    crowd.interest.on_member = lambda a_filter, member, text, step: (
        exports.change(a_filter, member, text, step) if a_filter.vpn_id == 1 else None
    )
    while exports.is_counting:
        for _ in range(crowd.rng.randrange(8)):
            crowd.change()
        exports.go_on(crowd.rng.choice((1, SUBSCRIPTION_COST, 5 * SUBSCRIPTION_COST)))
        assert not exports.has_changes or not exports.is_counting
        exports.validate(1, crowd.interest.filters)
    assert {pattern for pattern in exports.patterns() if not exports.wish(pattern)} == set()
    for _ in range(20):
        crowd.change()
    told = {pattern: exports.wish(pattern) for pattern in exports.patterns()}
    told.update(exports.changes())
    exports.validate(1, crowd.interest.filters)
    wanted = {
        parse_filter(text).pattern for vpn, _, text in crowd.there if vpn == 1 and text != "#noexport/a"
    }
    assert {pattern for pattern, wish in told.items() if wish} == wanted


def test_a_step_costs_no_more_than_it_may_however_many_want_one_filter() -> None:
    interest: Interest[Member] = Interest()
    parsed = parse_filter("a")
    made = interest.create(1, parsed, False, bytes(1 << 14))
    for _ in range(1_000):
        interest.join(made, Member(1), "a")
    exports = VpnExports(1, interest.filters)
    steps = 0
    while exports.is_counting:
        assert exports.go_on(100 * SUBSCRIPTION_COST) <= 101 * SUBSCRIPTION_COST
        steps += 1
    assert steps in (10, 11)


def test_neighbours_that_come_while_it_is_counted_are_told_when_it_is() -> None:
    mesh = WiredMesh("a", "b", "c", pairs=[])
    node = mesh["a"]
    client = node.client()
    client.subscribe(*(f"t/{n}" for n in range(250)))
    node.router.links.step_max = 10 * SUBSCRIPTION_COST
    mesh.links["b", "a"] = WiredLink(mesh["b"], node)
    _until_counting(mesh)
    mesh.links["c", "a"] = WiredLink(mesh["c"], node)
    client.unsubscribe("t/0", "t/249")
    client.subscribe("t/new")
    mesh.run(3.0)
    wanted = {f"t/{n}" for n in range(1, 249)} | {"t/new"}
    for name in ("b", "c"):
        (neighbour,) = mesh[name].router.links.sessions.values()
        assert set(neighbour.imports) == wanted
        assert neighbour.is_synchronised
    mesh.validate()


def test_a_link_that_goes_while_it_is_counted_leaves_nothing() -> None:
    mesh = WiredMesh("a", "b", pairs=[])
    node = mesh["a"]
    client = node.client()
    client.subscribe(*(f"t/{n}" for n in range(250)))
    node.router.links.step_max = 10 * SUBSCRIPTION_COST
    link = mesh.links["b", "a"] = WiredLink(mesh["b"], node)
    _until_counting(mesh)
    link.kill()
    del mesh.links["b", "a"]
    client.unsubscribe("t/7")
    node.router.tick(node.now)
    assert node.router.interest.on_member is None
    mesh.links["b", "a"] = WiredLink(mesh["b"], node, incarnation=2)
    mesh.run(3.0)
    (neighbour,) = mesh["b"].router.links.sessions.values()
    assert set(neighbour.imports) == {f"t/{n}" for n in range(250) if n != 7}
    mesh.validate()


def _until_counting(mesh: WiredMesh) -> None:
    """Let the link come as far as the first steps of counting."""
    node, link = mesh["a"], mesh.links["b", "a"]
    for _ in range(50):
        mesh["b"].router.tick(mesh["b"].now)
        mesh["b"].settle()
        link.channel.tick(node.now)
        link.step()
        node.router.tick(node.now)
        node.settle()
        if node.router.links.sessions:
            break
    assert [row["untold"] for row in node.router.links.describe()] == [0]
    assert any(exports.is_counting for exports in node.router.links._exports.values())
