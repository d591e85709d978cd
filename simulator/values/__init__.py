"""Values that planner, executor and commands exchange."""
