"""Explanations of a predicted run, and its prediction as a value."""
