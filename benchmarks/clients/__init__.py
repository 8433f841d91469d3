"""The client processes of the benchmarks, one module per broker; they run under that broker's own interpreter."""
