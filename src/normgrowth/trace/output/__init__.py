"""The output folder of a trace: measured sums (store.py), and whether a series is the measured one (identity.py)."""
