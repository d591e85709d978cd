"""Work of a device: matmuls, attention, memory passes."""
