"""Other frameworks: plans handed to them, their configurations and logs taken in."""
