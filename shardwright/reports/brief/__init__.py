"""Reports for decisions: HTML page, Markdown, CSV table and PDF figure of one answer."""
