"""Other frameworks: their configurations and logs read, our plans written in their words."""
