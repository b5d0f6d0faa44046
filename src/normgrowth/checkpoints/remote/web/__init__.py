"""Checkpoints on web servers: directory pages, range requests, pooled connections."""
