"""Requests of the commands: files in, checked values out."""
