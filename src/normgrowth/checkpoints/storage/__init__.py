"""Mapped files, and the location of tensor values in them."""
