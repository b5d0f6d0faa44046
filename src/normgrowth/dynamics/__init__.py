"""Dynamics: why the norm grows: what a schedule predicts, how aligned the steps are, where growth ends."""
