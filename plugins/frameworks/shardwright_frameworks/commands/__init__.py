"""Commands of the plug-in, one per file."""
