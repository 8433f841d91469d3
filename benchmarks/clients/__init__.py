"""The client processes of the benchmarks, one module per broker; peers run in an environment of their own."""
