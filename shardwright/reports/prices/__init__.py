"""Terminal reports of `catalog` about prices and ownership."""
