"""Saturation levels: of one model, and of a series of checkpoints."""
