"""The search block by block: over degrees and schedules of a traced model."""
