"""Public problems with known answers, each solved by a command: ``python -m planner.yardstick NAME FILE``."""
