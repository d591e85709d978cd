"""The op graph of a traced model."""
