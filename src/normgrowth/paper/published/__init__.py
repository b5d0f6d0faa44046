"""The numbers that the paper and its authors' code published."""
