"""Writers, one per framework."""
