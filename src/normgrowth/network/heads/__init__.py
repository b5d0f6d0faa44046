"""Attention heads: the positions they attend to, in the network and in its saturated limit."""
