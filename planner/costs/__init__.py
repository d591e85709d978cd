"""Costs and bounds of cells of the search block by block, from the simulator."""
