"""The sums over tensors, and the only definitions of norm, cosine, step, angle and budget; kernel.py is compiled."""
