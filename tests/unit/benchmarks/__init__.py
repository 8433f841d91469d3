"""How the benchmarks measure and judge."""
