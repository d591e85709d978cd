"""Input data: models (traced or described), hardware (described, measured) and prices."""
