"""Step times block by block, from a traced model."""
