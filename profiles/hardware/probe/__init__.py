"""Measurement of this machine."""
