"""Results of the Python functions of the plug-in."""
