"""The search over layouts of described models: every axis of a framework, priced as arrays."""
