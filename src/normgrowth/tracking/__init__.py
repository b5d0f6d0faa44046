"""The weights of a run, measured while they are trained.

tracker.py          `NormTracker`: hooks into `optimizer.step()`; due.py: which steps are measured
parameters.py       which parameters count, under which names
measured_step.py    one measured step: what is kept during it
tensor_sums.py      float64 sums of live tensors, over shards and ranks
optimizer_rules.py  what the optimizer does to each parameter: learning rate, decay, equilibrium
step_log.py         the append-only log of measured steps; step_file.py: its format; log_reader.py: from it to records
journal.py          folders of earlier versions
step_records.py     from the sums of many steps to quantities, with the definitions of `moments`
run_warnings.py     NaN, resolution, runaway, equilibrium, logits
logits.py           how large attention scores and outputs get, on request
distributed.py      one process among several
integrations/       callbacks for transformers and Lightning
"""
