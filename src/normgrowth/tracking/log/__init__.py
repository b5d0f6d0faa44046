"""The append-only log of measured steps, its file format, and the records made from it."""
