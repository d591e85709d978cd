"""Prices of renting and of owning devices."""
