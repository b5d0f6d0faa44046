"""Rules for softmax and attention.

softmax.py      softmax and log_softmax of any scores
fused.py        fused attention kernels
scores.py       scores whose lower orders are computed on demand, for some heads at a time
shares.py       the attention weights in the limit, from all relevant orders
ties.py         the largest scores of a row, within rounding; counts of rows that tie
head_groups.py  some heads at a time, and rows with one largest score in one pass
"""
