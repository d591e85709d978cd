"""Memory of a rank: of layouts and of plans block by block."""
