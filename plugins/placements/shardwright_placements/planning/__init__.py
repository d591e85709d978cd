"""One strategy per op of a traced model on a device mesh, with a proven bound."""
