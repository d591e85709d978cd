"""Data flow, random draws and message types for the replay of a model by a stage."""
