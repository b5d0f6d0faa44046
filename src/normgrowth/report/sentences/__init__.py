"""Sentences on results, for the terminal, figures and the HTML page: one file per kind of result."""
