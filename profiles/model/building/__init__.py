"""Models as torch modules with inputs and loss."""
