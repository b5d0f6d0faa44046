"""Attention heads: which positions they attend to, and what they do in the saturated network."""
