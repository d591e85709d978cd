"""What `size` prints."""
