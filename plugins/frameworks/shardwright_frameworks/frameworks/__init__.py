"""Readers of configurations, one per framework."""
