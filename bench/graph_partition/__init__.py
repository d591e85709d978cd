"""Contiguous splits of graphs that are not chains: largest load smallest, with a proven bound."""
