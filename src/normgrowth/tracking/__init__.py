"""Measures the weights of a run during training.

tracker.py          `NormTracker`; due.py: which steps are measured; logger_values.py: names and values for loggers
measuring/          hooks on optimizers, and the training steps: copies before each, sums after it; changed settings
tracked_parameters.py  the counted parameters and their names
tensor_sums.py      float64 sums of live tensors, over shards and ranks
optimizer_rules.py  the optimizer's settings for each parameter: learning rate, decay, equilibrium
log/                recording.py: what a tracker writes; the append-only log, and the records made from it
run_warnings.py     NaN, resolution, runaway, equilibrium, logits
forward_passes/     magnitudes of attention scores and outputs, on request; the dtypes of the computation
distributed.py      process groups: rank, main process, broadcast
integrations/       callbacks for transformers and Lightning
"""
