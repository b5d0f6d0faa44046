"""Measures the weights of a run during training.

tracker.py          `NormTracker`: hooks into `optimizer.step()`; due.py: which steps are measured
tracked_parameters.py  the counted parameters and their names
measured_step.py    one measured step: copies before it, sums after it
tensor_sums.py      float64 sums of live tensors, over shards and ranks
optimizer_rules.py  the optimizer's settings for each parameter: learning rate, decay, equilibrium
log/                the append-only log of measured steps, and the records made from it
run_warnings.py     NaN, resolution, runaway, equilibrium, logits
forward_passes/     magnitudes of attention scores and outputs, on request; the dtypes of the computation
distributed.py      process groups: rank, main process, broadcast
integrations/       callbacks for transformers and Lightning
"""
