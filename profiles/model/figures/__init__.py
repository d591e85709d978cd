"""A transformer by its sizes: from a configuration or a trace."""
