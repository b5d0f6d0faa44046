"""The command line: one file per command, each a declaration; `main.py` dispatches."""
