"""Devices to rent for a whole training run: how many devices of which type, with which layout."""
