"""Measured speeds of kernels and collectives."""
