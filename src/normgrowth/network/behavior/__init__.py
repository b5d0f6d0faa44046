"""Predictions of a language model as its attention hardens and its weights grow."""
