"""Reports that a decision is made on: page, Markdown, table and figure of one answer."""
