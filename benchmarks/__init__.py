"""Benchmarks: this broker and its peers measured in one interleaved run, every client a process of its own.

`scripts/bench` runs them, `docs/benchmarks.md` says what is measured and what is fair. Nothing that is
installed imports this package.
"""
