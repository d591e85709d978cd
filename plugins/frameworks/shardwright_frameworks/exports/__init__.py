"""Plans as files of other frameworks."""
