"""Several training runs on one or more clusters over time."""
