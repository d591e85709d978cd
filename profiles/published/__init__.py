"""Published runs: what others trained on which layout, and, apart from it, what they measured."""
