"""Cells of a sweep: runs without a folder, one at a time or stacked, and the search for the edge of growth."""
