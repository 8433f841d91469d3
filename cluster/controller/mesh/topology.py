"""What is wrong with the mesh: a pure function over what its nodes tell of themselves and their links.

A cluster is a full mesh: every node has one link with every other, all have the same Message VPNs, and no two the same
name (docs/mesh.md). There is no transit, so a link that is missing is traffic that is missing, and no node can see
that by itself: a node in the middle of a line knows both ends, and each end knows of the other through it.

    known of a and b                                        issue
    neither has a link to the other                         link_missing
    a has one, b has none                                   link_one_sided
    both have one, and one of them is switched off          link_disabled
    both have one that is not up                            link_down, or what the error of an end says
    the queue of an end takes no messages                   link_shut
    a and c know two nodes b with different ids             name_duplicate

What a node said counts as long as it is heard. Of one that is not, only what it is and which links it has still counts;
so a node that died is a link that is down for each of the others, and nothing between itself and a third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cluster.controller.mesh.reports import LinkReport, NodeReport

#: Nodes that are looked at: more than a full mesh can have, and few enough for a look a second whatever others claim.
NODES_MAX: Final = 500
#: States of a link in which it carries messages, or is about to.
JOINED: Final = ("up", "synchronising")
#: Kinds of issues that a refusal means; any other is `link_refused`.
_KINDS: Final = {
    errors.CLUSTER_MISMATCH: "cluster_name_differs",
    errors.LINK_EXISTS: "name_duplicate",
    errors.LINK_NOT_ALLOWED: "link_one_sided",
}
#: What a link cannot do in one Message VPN because the other node does not have it: `vpns_differ` says so.
_OF_VPNS: Final = (errors.VPN_NOT_ALLOWED, errors.VPN_UNAVAILABLE)
#: Why a link is down that nobody refused.
_NOT_REFUSED: Final = (*errors.PASSING, errors.EGRESS_BLOCKED, errors.INTERNAL)


class Heard(NamedTuple):
    """A node that told of itself."""

    report: NodeReport
    #: Whether it does so still.
    is_fresh: bool


class Refusal(NamedTuple):
    """A node that this one refused lately."""

    node: str
    code: int
    error: str


class Issue(NamedTuple):
    """Something that is wrong: what, with which nodes (by name), and what to do."""

    kind: str
    nodes: tuple[str, ...]
    text: str
    advice: str

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """What makes it the same issue, whatever its text says by now."""
        return self.kind, self.nodes


def find_issues(own: str, known: Mapping[str, Heard], refusals: Sequence[Refusal] = ()) -> list[Issue]:
    """Give all issues of a mesh, each once, in a fixed order.

    Args:
        own: name of the node that wants to know; it is among `known`.
        known: what nodes told of themselves, by name.
        refusals: who wanted to come to this node and may not.
    """
    ends = {(name, link.node): link for name, heard in known.items() for link in heard.report.links}
    issues = [
        issue for one, two in _pairs(known, ends) if (issue := _judge_pair(one, two, known, ends)) is not None
    ]
    issues += [*_shut(known), *_refused(own, refusals)]
    issues += [*_duplicates(known), *_different_vpns(known), *_different_releases(known)]
    unique = {issue.key: issue for issue in reversed(issues)}
    return sorted(unique.values(), key=lambda issue: issue.key)


def _pairs(
    known: Mapping[str, Heard], ends: Mapping[tuple[str, str], LinkReport]
) -> Iterator[tuple[str, str]]:
    """Give each pair of nodes once, smaller name first, of which one is heard: nobody can say anything of the others.

    A node that is only mentioned is there if it had a link that was up; else its name may be misspelt, and who has that
    link is the only one that lacks something.
    """
    there = {*known, *(link.node for heard in known.values() for link in heard.report.links if link.node_id)}
    names = [*known, *sorted({far for _, far in ends} - known.keys())][:NODES_MAX]
    for one in (name for name, heard in known.items() if heard.is_fresh):
        for two in names:
            is_told = two in known and known[two].is_fresh
            is_seen = two in there or (one, two) in ends
            if one != two and is_seen and (one < two or not is_told):
                yield (one, two) if one < two else (two, one)


# -- pairs of nodes --------------------------------------------------------------------------------------------


class _End(NamedTuple):
    """One end of a link that should be there."""

    node: str
    #: None if the node never told of itself.
    heard: Heard | None
    #: None if the node has no such link.
    link: LinkReport | None

    @property
    def lacks(self) -> bool:
        """Whether it is known to have no such link."""
        return self.heard is not None and self.link is None

    @property
    def told(self) -> LinkReport | None:
        """How the link does, if the node is still heard."""
        return self.link if self.heard is not None and self.heard.is_fresh else None


def _judge_pair(
    one: str, two: str, known: Mapping[str, Heard], ends: Mapping[tuple[str, str], LinkReport]
) -> Issue | None:
    here = _End(one, known.get(one), ends.get((one, two)))
    there = _End(two, known.get(two), ends.get((two, one)))
    if here.link is None and there.link is None:
        return _missing(here, there)
    if here.lacks or there.lacks:
        having, lacking = (there, here) if here.lacks else (here, there)
        return _one_sided(having.node, lacking.node)
    return _unhealthy(here, there)


def _missing(here: _End, there: _End) -> Issue:
    one, two = here.node, there.node
    opener, other = max(one, two), min(one, two)
    text = f"nodes {one!r} and {two!r} have no link: what is published on one does not reach the other"
    advice = (
        f"on {opener}: angarium link create {other} --set addresses=ADDRESS-OF-{other}; "
        f"on {other}: angarium link create {opener}"
    )
    return Issue("link_missing", (one, two), text, advice)


def _one_sided(having: str, lacking: str) -> Issue:
    text = f"node {having!r} has a link to {lacking!r}, which has none to {having!r}"
    advice = f"on {lacking}: angarium link create {having}; or on {having}: angarium link delete {lacking}"
    return Issue("link_one_sided", _pair(having, lacking), text, advice)


def _unhealthy(here: _End, there: _End) -> Issue | None:
    ends = (here, there)
    told = [(end, end.told) for end in ends if end.told is not None]
    switched_off = [end.node for end, link in told if link.state == "disabled"]
    other = {here.node: there.node, there.node: here.node}
    pair = _pair(here.node, there.node)
    if switched_off:
        node = switched_off[0]
        text = f"node {node!r} has its link to {other[node]!r} disabled"
        advice = f"on {node}: angarium link update {other[node]} --set enabled=true"
        return Issue("link_disabled", pair, text, advice)
    failing = [(end.node, link) for end, link in told if link.state not in JOINED]
    if not failing:
        return None
    node, link = max(failing, key=lambda one: (one[1].code != 0, one[1].error != "", one[0]))
    if link.state == "degraded" and link.code in _OF_VPNS:
        return None
    return _down(node, link, pair)


def _down(node: str, link: LinkReport, pair: tuple[str, ...]) -> Issue:
    """Judge a link that is not up by what its end says: refused for a reason, or just not there."""
    why = f": {link.error}" if link.error else ""
    if link.state == "degraded":
        text = f"the link of {node!r} to {link.node!r} does not join all Message VPNs{why}"
        return Issue("link_degraded", pair, text, _advice(link.code))
    text = f"the link between {node!r} and {link.node!r} is down{why}"
    if link.code and link.code not in _NOT_REFUSED:
        kind = _KINDS.get(link.code, "link_refused")
        return Issue(kind, (node,) if kind == "name_duplicate" else pair, text, _advice(link.code))
    far = link.node
    reach = "has to reach the addresses in 'angarium link show"
    if link.opens:
        advice = f"see that {far} runs; {node} opens the link, so it {reach} {far}' there"
    else:
        advice = (
            f"see that {far} runs and has the link {node}, enabled and with an initiator that agrees; "
            f"{far} opens the link, so it {reach} {node}' there"
        )
    return Issue("link_down", pair, text, advice)


def _shut(known: Mapping[str, Heard]) -> Iterator[Issue]:
    """Give the links that take no messages at an end: a node leaves, or was killed while it did."""
    ends = [
        (name, link.node)
        for name, heard in known.items()
        for link in heard.report.links
        if heard.is_fresh and link.shut
    ]
    for pair in {_pair(*end): None for end in ends}:
        told = [end for end in sorted(ends) if _pair(*end) == pair]
        who = " and ".join(f"{one!r} to {two!r}" for one, two in told)
        text = f"the link of {who} takes no guaranteed messages: publishers are refused (50311)"
        opening = "; ".join(
            f"on {one}: angarium queue update '{wire.LINK_NAME_PREFIX}{two}' --set ingress_enabled=true"
            for one, two in told
        )
        advice = (
            f"if a node was to leave and that broke off: angarium cluster leave there again; or {opening}"
        )
        yield Issue("link_shut", pair, text, advice)


def _advice(code: int) -> str:
    reason = errors.ERRORS.get(code)
    return "see 'angarium events'" if reason is None else reason.advice


def _pair(one: str, two: str) -> tuple[str, ...]:
    return tuple(sorted((one, two)))


def _refused(own: str, refusals: Sequence[Refusal]) -> list[Issue]:
    """Give issues of neighbours that came to this node in vain; those with a link that is up come from another one."""
    found = []
    for node, code, error in refusals:
        kind = _KINDS.get(code, "link_refused")
        text = f"node {own!r} refused a link of node {node!r}: {error}"
        nodes = (node,) if kind == "name_duplicate" else _pair(own, node)
        found.append(Issue(kind, nodes, text, _advice(code)))
    return found


# -- all nodes -------------------------------------------------------------------------------------------------


def _duplicates(known: Mapping[str, Heard]) -> list[Issue]:
    """Give the names that two nodes have: they are known by different ids to those that have links with them."""
    ids: dict[str, dict[str, list[str]]] = {}
    for name, heard in known.items():
        if heard.is_fresh:
            ids.setdefault(name, {}).setdefault(heard.report.node_id, []).append(name)
            for link in heard.report.links:
                if link.node_id and link.state in JOINED:
                    ids.setdefault(link.node, {}).setdefault(link.node_id, []).append(name)
    return [
        Issue(
            "name_duplicate",
            (name,),
            f"{len(found)} nodes are called {name!r}: "
            + ", ".join(f"{node_id} (known to {by[0]})" for node_id, by in found.items()),
            _advice(errors.LINK_EXISTS),
        )
        for name, found in ids.items()
        if len(found) > 1
    ]


def _different_vpns(known: Mapping[str, Heard]) -> list[Issue]:
    reports = {name: heard.report for name, heard in known.items() if heard.is_fresh}
    if len({report.vpn_digest for report in reports.values()}) < 2:
        return []
    everywhere = dict.fromkeys(vpn for name in sorted(reports) for vpn in reports[name].vpns)
    lacking = []
    for name in sorted(reports):
        report = reports[name]
        missing = (
            [vpn for vpn in everywhere if vpn not in report.vpns]
            if len(report.vpns) == report.vpn_count
            else []
        )
        lacking.append(
            f"{name} has {report.vpn_count}" + (f" and lacks {', '.join(missing)}" if missing else "")
        )
    text = f"the nodes have different enabled Message VPNs: {'; '.join(lacking)}"
    return [Issue("vpns_differ", (), text, "create or enable each on every node: angarium vpn create NAME")]


def _different_releases(known: Mapping[str, Heard]) -> list[Issue]:
    releases: dict[str, list[str]] = {}
    for name in sorted(known):
        if known[name].is_fresh:
            releases.setdefault(known[name].report.release, []).append(name)
    if len(releases) < 2:
        return []
    text = "; ".join(f"{release}: {', '.join(names)}" for release, names in sorted(releases.items()))
    advice = "upgrade the nodes that are behind, one after the other"
    return [Issue("releases_differ", (), f"the nodes run different versions: {text}", advice)]
