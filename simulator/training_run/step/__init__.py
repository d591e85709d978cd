"""The step time of layouts: features, coefficients and terms."""
