"""Contiguous splits of graphs that are not chains, with the smallest largest load, proven."""
