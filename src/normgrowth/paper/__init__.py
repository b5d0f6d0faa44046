"""The paper: its published numbers, its claims with verdicts, and its reproduction.

Merrill, Ramanujan, Goldberg, Schwartz, Smith: "Effects of Parameter Norm Growth During Transformer
Training: Inductive Bias from Gradient Descent", EMNLP 2021 (arXiv:2010.09697v5). A number in here is
published (read off a figure) or derived (computed from published ones). normgrowth measured none of them.
"""
