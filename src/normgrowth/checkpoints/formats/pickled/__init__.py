"""Pickles read as data: no class is imported, nothing is called."""
