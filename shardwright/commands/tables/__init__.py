"""Commands over a table of rows."""
