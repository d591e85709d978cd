"""What replays of a model need to know: its data flow, its draws, what crosses cuts."""
