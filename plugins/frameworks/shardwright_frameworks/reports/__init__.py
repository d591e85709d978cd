"""Terminal reports of the plug-in."""
