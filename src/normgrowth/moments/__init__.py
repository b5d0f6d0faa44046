"""Sums over tensors, and the only definitions of norm, cosine, step size, angle and growth budget."""
