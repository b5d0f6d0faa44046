"""Mapped files, and the pieces of them in which values lie."""
