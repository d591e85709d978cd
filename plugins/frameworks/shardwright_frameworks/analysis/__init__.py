"""Comparison of logs and measured links with predictions."""
