"""Rules for softmax and attention.

softmax.py      softmax and log_softmax of any scores
fused.py        attention in one kernel
scores.py       scores whose lower orders are computed for some heads at a time, if asked for
shares.py       which keys keep a share, by every order that counts
ties.py         the largest scores of a row, within rounding; counts of rows that tie
head_groups.py  some heads at a time, and rows with one largest score in one pass
"""
