"""The weights of a run, measured while they are trained.

tracker.py          `NormTracker`: hooks into `optimizer.step()`; due.py: which steps are measured
tracked_parameters.py  which parameters count, under which names
measured_step.py    one measured step: what is kept during it
tensor_sums.py      float64 sums of live tensors, over shards and ranks
optimizer_rules.py  what the optimizer does to each parameter: learning rate, decay, equilibrium
log/                the append-only log of measured steps, and the records made from it
run_warnings.py     NaN, resolution, runaway, equilibrium, logits
logits.py           how large attention scores and outputs get, on request
distributed.py      one process among several
integrations/       callbacks for transformers and Lightning
"""
