"""The brokers of the benchmarks, one module each: where it is installed, how it starts, what it costs."""
