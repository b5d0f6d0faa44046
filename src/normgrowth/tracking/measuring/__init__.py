"""Measures training steps: which calls of optimizers belong to one, its sums, and the settings that changed."""
