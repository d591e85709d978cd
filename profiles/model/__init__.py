"""Models: loading, tracing, the graph of blocks."""
