"""Requests: from options to answers."""
