"""Saturation levels of models and of series of checkpoints."""
