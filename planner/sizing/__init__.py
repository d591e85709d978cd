"""Devices to rent for a whole training run: their number and type, and the layout."""
