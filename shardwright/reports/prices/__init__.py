"""What `catalog` prints of prices and of owning."""
