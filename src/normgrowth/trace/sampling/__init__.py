"""Samples of the values of each step, which the integrity checks judge."""
