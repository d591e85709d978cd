"""Training frameworks as data."""
