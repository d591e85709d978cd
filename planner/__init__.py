"""Decisions: which plan is best, and why."""
