"""Data flow, random draws and message types: what a stage needs to replay a model."""
