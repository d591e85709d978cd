"""Facts: what a model is, what hardware is, what it costs."""
