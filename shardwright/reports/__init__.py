"""Reports: terminal, Markdown, HTML and Chrome trace."""
