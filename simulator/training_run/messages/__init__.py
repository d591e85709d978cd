"""Messages of a run: sizes, groups, links and times."""
