"""Public problems with known answers, as commands: ``python -m planner.yardstick NAME FILE``."""
