"""Plans on devices of several types."""
