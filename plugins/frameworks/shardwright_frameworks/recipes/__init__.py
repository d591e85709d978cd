"""Findings on configurations: faults, memory and speed."""
