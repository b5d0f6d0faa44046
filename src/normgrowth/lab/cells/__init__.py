"""Cells of a sweep: runs without an output folder, trained alone or stacked, and the search for the edge of growth."""
