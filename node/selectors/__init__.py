"""Selectors: conditions over the headers and properties of a message, in a subset of SQL-92 (R140 to R142).

`compile_selector(text)` gives a `Selector`, whose `matches(row)` tells whether a message is selected. The
grammar and the three-valued logic are those of JMS 1.1, 3.8.1; `docs/selectors.md`
describes them for users.
"""

from node.selectors.compiler import Selector, compile_selector

__all__ = ["Selector", "compile_selector"]
