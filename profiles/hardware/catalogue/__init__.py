"""Devices, links and clusters, as values and files."""
