"""Curves against c: the convergence of a network to its limit when all parameters are multiplied by c."""
