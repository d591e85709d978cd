"""The partition problem: blocks into pipeline stages, solved exactly."""
