"""What to rent for a whole training run: number and type of devices, and layout."""
