"""Log formats, one per framework."""
