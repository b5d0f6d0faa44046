"""Checkpoint formats, one module each. No code in a checkpoint is ever executed."""
