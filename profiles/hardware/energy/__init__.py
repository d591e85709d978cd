"""Power of nodes and carbon of power grids."""
