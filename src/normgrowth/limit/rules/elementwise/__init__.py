"""Rules for functions of single values: activations, powers, logarithms."""
