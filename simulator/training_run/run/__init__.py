"""A run to predict: layout, model, device and options."""
