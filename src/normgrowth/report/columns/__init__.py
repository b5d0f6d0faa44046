"""The columns of tables: one file per kind of result, for the terminal and the page."""
