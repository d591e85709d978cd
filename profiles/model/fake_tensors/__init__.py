"""Fake tensors: shapes without storage."""
