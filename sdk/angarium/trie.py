"""Which filters match a topic: a trie of levels.

`FilterTrie` answers from scratch; `angarium.topic_cache` remembers what it answered. Patterns without wildcard are in a
dict; the others in a tree with one node per level, in which a search follows at most four kinds of edges: the literal
level, the lone `*`, the prefixes that the level starts with, and `>`. The grammar is in `angarium.topic`.

With filters that overlap much a search visits very many nodes: `{a*,*}` at 15 levels are 32,768 filters and 65,535
nodes for one topic. Who must not be held up searches with a limit and gets a `Walk` that goes on later.

Workers match published topics, the router its fast path, the SDK dispatches deliveries. No I/O, no clock, no
thread.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from operator import length_hint
from typing import Final, Generic, TypeAlias, TypeVar

from angarium.topic import POINT_TO_POINT_PREFIX, has_wildcard, level_prefix

V = TypeVar("V", bound=Hashable)

#: Beyond so many values a pattern keeps them in a dict: most have one, for which a tuple is a third of the
#: size, but some have thousands (share groups on one filter), for which copying a tuple at each change would
#: be quadratic.
_TUPLE_VALUES_MAX: Final = 8
#: Nodes that a search visits before it looks whether it has to stop.
_PIECE: Final = 256
#: Lookups of prefixes that take as long as a node.
_LOOKUPS_PER_NODE: Final = 2
#: Topics that hide from some wildcards begin with `#` or `$`, and sort before this.
_SHY_TO: Final = "%"

_Values: TypeAlias = "tuple[V, ...] | dict[V, None]"


def _with_value(values: _Values[V] | None, value: V) -> _Values[V]:
    """Give the collection with one more value; the same object if it is in it."""
    if values is None:
        return (value,)
    if value in values:
        return values
    if isinstance(values, dict):
        values[value] = None
        return values
    if len(values) < _TUPLE_VALUES_MAX:
        return (*values, value)
    return dict.fromkeys((*values, value))


def _without_value(values: _Values[V] | None, value: V) -> _Values[V] | None:
    """Give the collection without a value, None if it is empty then.

    Raises:
        KeyError: the value is not in it.
    """
    if values is None or value not in values:
        raise KeyError(value)
    if isinstance(values, dict):
        del values[value]
        return values or None
    return tuple(one for one in values if one != value) or None


class FilterTrie(Generic[V]):
    """Values by pattern; gives the values of all patterns that match a topic.

    A value is kept once per pattern, however often it is added. The order of an answer depends only on the
    changes made.
    """

    __slots__ = ("_exact", "_literal", "_lone", "_pairs", "_prefix", "_visible", "_wildcard_pairs")

    def __init__(self) -> None:
        #: Values of patterns without wildcard. Never an empty collection.
        self._exact: dict[str, _Values[V]] = {}
        #: The tree is three trees, by the kind of the first level, because some topics hide from some of
        #: them: this one has literal edges only, and every topic is looked up in it.
        self._literal: _Node[V] = _Node()
        #: First level `x*`; hidden from it are the topics that start with `#P2P`.
        self._prefix: _Node[V] = _Node()
        #: First level `*` or `>`; hidden from it are also the topics that start with `$`.
        self._lone: _Node[V] = _Node()
        #: Those of the three that have had a pattern: what topics that hide from none are looked up in.
        self._visible: list[_Node[V]] = []
        #: Pairs of pattern and value in the three trees.
        self._wildcard_pairs = 0
        #: Pairs of pattern and value over all.
        self._pairs = 0

    def __len__(self) -> int:
        """Count the pairs of pattern and value."""
        return self._pairs

    def add(self, pattern: str, value: V) -> None:
        """Add a value to a pattern; nothing happens if it has it."""
        if has_wildcard(pattern):
            root, levels, is_open = self._path(pattern)
            if root not in self._visible:
                self._visible.append(root)
            added = root.add(levels, value, to_rest=is_open)
            self._wildcard_pairs += added
            self._pairs += added
            return
        old = self._exact.get(pattern)
        if old is None or value not in old:
            self._exact[pattern] = _with_value(old, value)
            self._pairs += 1

    def remove(self, pattern: str, value: V) -> None:
        """Remove a value from a pattern.

        Raises:
            KeyError: the pattern does not have it.
        """
        if has_wildcard(pattern):
            root, levels, is_open = self._path(pattern)
            root.remove(levels, value, from_rest=is_open)
            self._wildcard_pairs -= 1
        else:
            left = _without_value(self._exact.get(pattern), value)
            if left is None:
                del self._exact[pattern]
            else:
                self._exact[pattern] = left
        self._pairs -= 1

    def match(self, topic: str) -> list[V]:
        """Give the values of all patterns that match a topic; one of several patterns comes repeatedly."""
        values = self._exact.get(topic)
        found: list[V] = [] if values is None else [*values]
        walk = self.search(topic, found, sys.maxsize)
        if not isinstance(walk, int):
            walk.step(sys.maxsize)
        return found

    def search(self, topic: str, found: list[V], nodes_max: int) -> int | Walk[V]:
        """Append the values of all patterns with wildcards that match a topic; `exact` has the others.

        Gives the number of nodes that this took, or the walk to go on with if it takes more than `nodes_max`.
        """
        if not self._wildcard_pairs:
            return 0
        frontier = self._visible if topic > _SHY_TO else self._roots(topic)
        levels = topic.split("/")
        visited = 0
        limit = _PIECE if nodes_max > _PIECE else nodes_max
        left = iter(levels)
        for level in left:
            visited += len(frontier)
            if visited > limit:
                depth = len(levels) - length_hint(left) - 1
                return Walk(levels, depth, [*frontier], found, visited - len(frontier))
            following: list[_Node[V]] = []
            for node in frontier:  # `_visit`, without the price of a call for each level
                if node.rest is not None:
                    found += node.rest
                if node.children is not None and (child := node.children.get(level)) is not None:
                    following.append(child)
                if node.single is not None:
                    following.append(node.single)
                if node.prefixes is not None:
                    following += node.prefixes.match(level)
                    visited += len(node.prefixes.lengths) // _LOOKUPS_PER_NODE
            if not following:
                return visited
            frontier = following
        if len(frontier) > _PIECE:
            return Walk(levels, len(levels), frontier, found, visited)
        for node in frontier:
            if node.values is not None:
                found += node.values
        return visited

    def exact(self, topic: str) -> _Values[V]:
        """Give the values of the pattern that is the topic."""
        return self._exact.get(topic, ())

    def _roots(self, topic: str) -> list[_Node[V]]:
        """Give the trees that a topic does not hide from, if it may be shy."""
        if topic[:1] == "$":
            return [self._literal, self._prefix]
        if topic.startswith(POINT_TO_POINT_PREFIX):
            return [self._literal]
        return [self._literal, self._prefix, self._lone]

    def _path(self, pattern: str) -> tuple[_Node[V], list[str], bool]:
        """Give the tree of a pattern, its levels without a last `>`, and whether there is one."""
        levels = pattern.split("/")
        is_open = levels[-1] == ">"
        if is_open:
            levels.pop()
        prefix = level_prefix(levels[0]) if levels else ""
        if prefix is None:
            return self._literal, levels, is_open
        return self._prefix if prefix else self._lone, levels, is_open

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(self._exact.values()), "an exact pattern without values"
        assert not any(has_wildcard(pattern) for pattern in self._exact)
        roots = (self._literal, self._prefix, self._lone)
        assert all(root.is_empty() or root in self._visible for root in roots)
        assert all(root.values is None for root in roots), "a pattern of no levels"
        literal, prefix, lone = roots
        assert (literal.single, literal.prefixes, literal.rest) == (None, None, None)
        assert (prefix.single, prefix.children, prefix.rest) == (None, None, None)
        assert (lone.children, lone.prefixes) == (None, None)
        assert self._wildcard_pairs == sum(root.validate() for root in roots)
        assert self._pairs == self._wildcard_pairs + sum(map(len, self._exact.values()))


class Walk(Generic[V]):
    """The search for one topic: level by level with all nodes that can still match. It may stop anywhere and go on.

    What a change between two steps adds or removes may be found or not; everything else is found.
    """

    __slots__ = ("_depth", "_following", "_frontier", "_levels", "found", "visited")

    def __init__(
        self, levels: list[str], depth: int, frontier: list[_Node[V]], found: list[V], visited: int
    ) -> None:
        #: The values found so far; one of several patterns comes repeatedly.
        self.found = found
        #: What the search has cost so far, in nodes.
        self.visited = visited
        self._levels = levels
        self._depth = depth
        #: Nodes of this depth that are still to be visited.
        self._frontier = frontier
        #: Those of the next depth that are known already.
        self._following: list[_Node[V]] = []

    def step(self, nodes_max: int) -> bool:
        """Visit about so many nodes more; true when there are none left."""
        found, levels = self.found, self._levels
        frontier, following = self._frontier, self._following
        left = nodes_max
        ended = False
        while left > 0:
            nodes = frontier
            if len(nodes) > _PIECE:
                nodes = frontier[-_PIECE:]
                del frontier[-_PIECE:]
            else:
                frontier = []
            left -= len(nodes)
            if self._depth < len(levels):
                left -= _visit(nodes, levels[self._depth], found, following)
            else:
                for node in nodes:
                    if node.values is not None:
                        found += node.values
            if frontier:
                continue
            if not following:
                ended = True
                break
            frontier, following = following, []
            self._depth += 1
        self._frontier, self._following = frontier, following
        self.visited += nodes_max - left
        return ended


def _visit(nodes: list[_Node[V]], level: str, found: list[V], following: list[_Node[V]]) -> int:
    """Look from some nodes for the next level of a topic; gives what that cost besides the nodes themselves."""
    extra = 0
    for node in nodes:
        if node.rest is not None:
            found += node.rest
        if node.children is not None and (child := node.children.get(level)) is not None:
            following.append(child)
        if node.single is not None:
            following.append(node.single)
        if node.prefixes is not None:
            following += node.prefixes.match(level)
            extra += len(node.prefixes.lengths) // _LOOKUPS_PER_NODE
    return extra


class _Node(Generic[V]):
    """What the patterns with one common beginning have in common. Only roots may be empty."""

    __slots__ = ("children", "prefixes", "rest", "single", "values")

    def __init__(self) -> None:
        #: The next node by literal level; None instead of an empty dict.
        self.children: dict[str, _Node[V]] | None = None
        #: The next node for a lone `*`.
        self.single: _Node[V] | None = None
        #: The next nodes for `x*`; None instead of an empty collection.
        self.prefixes: _Prefixes[V] | None = None
        #: Values of the pattern that goes on with a last `>`; None instead of an empty collection.
        self.rest: _Values[V] | None = None
        #: Values of the pattern that ends here; None instead of an empty collection.
        self.values: _Values[V] | None = None

    def add(self, levels: list[str], value: V, *, to_rest: bool) -> int:
        """Add a value at the end of the levels, or to the `>` behind it; count what is new (0 or 1)."""
        node = self
        for level in levels:
            node = node.step(level) or node.grow(level)
        old = node.rest if to_rest else node.values
        if old is not None and value in old:
            return 0
        if to_rest:
            node.rest = _with_value(old, value)
        else:
            node.values = _with_value(old, value)
        return 1

    def remove(self, levels: list[str], value: V, *, from_rest: bool) -> None:
        """Remove a value, and the nodes that are empty without it.

        Raises:
            KeyError: it is not there.
        """
        path = [self]
        for level in levels:
            node = path[-1].step(level)
            if node is None:
                raise KeyError(value)
            path.append(node)
        end = path[-1]
        if from_rest:
            end.rest = _without_value(end.rest, value)
        else:
            end.values = _without_value(end.values, value)
        for level in reversed(levels):
            if not path.pop().is_empty():
                return
            path[-1].prune(level)

    def step(self, level: str) -> _Node[V] | None:
        """Give the next node for one level of a pattern, if there is one."""
        prefix = level_prefix(level)
        if prefix is None:
            return None if self.children is None else self.children.get(level)
        if not prefix:
            return self.single
        return None if self.prefixes is None else self.prefixes.nodes.get(prefix)

    def grow(self, level: str) -> _Node[V]:
        """Make the next node for one level of a pattern."""
        node: _Node[V] = _Node()
        prefix = level_prefix(level)
        if prefix is None:
            if self.children is None:
                self.children = {}
            self.children[level] = node
        elif not prefix:
            self.single = node
        else:
            if self.prefixes is None:
                self.prefixes = _Prefixes()
            self.prefixes.add(prefix, node)
        return node

    def prune(self, level: str) -> None:
        """Forget the next node for one level of a pattern."""
        prefix = level_prefix(level)
        if prefix is None:
            assert self.children is not None
            del self.children[level]
            self.children = self.children or None
        elif not prefix:
            self.single = None
        else:
            assert self.prefixes is not None
            self.prefixes.remove(prefix)
            self.prefixes = self.prefixes if self.prefixes.nodes else None

    def is_empty(self) -> bool:
        """Tell whether no pattern needs this node."""
        parts = (self.values, self.rest, self.single, self.children, self.prefixes)
        return all(part is None for part in parts)

    def validate(self) -> int:
        """Check this node and those below; count their pairs of pattern and value."""
        pairs = 0
        for values in (self.values, self.rest):
            assert values is None or len(values) > 0, "an empty collection instead of None"
            pairs += 0 if values is None else len(values)
        below: list[_Node[V]] = [] if self.single is None else [self.single]
        if self.children is not None:
            assert self.children, "an empty dict instead of None"
            below += self.children.values()
        if self.prefixes is not None:
            self.prefixes.validate()
            below += self.prefixes.nodes.values()
        for node in below:
            assert not node.is_empty(), "a node that no pattern needs"
            pairs += node.validate()
        return pairs


class _Prefixes(Generic[V]):
    """The `x*` edges of one node. A search looks up one slice per length in use, of which there are few."""

    __slots__ = ("_count_by_length", "lengths", "nodes")

    def __init__(self) -> None:
        #: The next node by prefix. Never empty outside of a change; no prefix is empty.
        self.nodes: dict[str, _Node[V]] = {}
        #: How many prefixes have a length; never 0.
        self._count_by_length: dict[int, int] = {}
        #: The keys of `_count_by_length`, rising.
        self.lengths: list[int] = []

    def add(self, prefix: str, node: _Node[V]) -> None:
        self.nodes[prefix] = node
        length = len(prefix)
        count = self._count_by_length.get(length, 0)
        self._count_by_length[length] = count + 1
        if not count:
            self.lengths = sorted(self._count_by_length)

    def remove(self, prefix: str) -> None:
        del self.nodes[prefix]
        length = len(prefix)
        self._count_by_length[length] -= 1
        if not self._count_by_length[length]:
            del self._count_by_length[length]
            self.lengths = sorted(self._count_by_length)

    def match(self, level: str) -> list[_Node[V]]:
        """Give the nodes of the prefixes with which a level of a topic starts."""
        found = []
        size = len(level)
        for length in self.lengths:
            if length > size:
                break
            node = self.nodes.get(level[:length])
            if node is not None:
                found.append(node)
        return found

    def validate(self) -> None:
        assert self.nodes, "an empty collection instead of None"
        assert all(self.nodes), "a lone * among the prefixes"
        assert self.lengths == sorted({len(prefix) for prefix in self.nodes})
        assert list(self._count_by_length.values()).count(0) == 0
        assert sum(self._count_by_length.values()) == len(self.nodes)
