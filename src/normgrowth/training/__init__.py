"""What a run says: the size of the weights, measured while they are trained.

tracker.py      `NormTracker`: hooks into `optimizer.step()`, the part that users meet
parameters.py   which parameters count, under which names
held.py         one measured step: what is kept during it; when.py: which steps are measured
sums.py         float64 sums of live tensors, over shards and ranks
rules.py        what the optimizer says of each parameter: learning rate, decay, equilibrium
journal.py      the sums on disk while training goes on, and the records they become
expand.py       from the sums of many steps to quantities, with the definitions of `weights.moments`
alarms.py       what a person should know of now
logits.py       how large attention scores and outputs get, on request
ranks.py        one process among several
hf.py           the tracker in the Trainer of transformers; lightning.py in that of Lightning
loop.py         `train`, the lab: a language model as in the paper, from words to a series of checkpoints
settings.py     what such a run is; making.py: the model, optimizer and corpus that they stand for
corpora.py      sentences as rows of ids, in batches without padding; languages.py: formal languages
evaluation.py   losses on held-out rows, and saturation
cells.py        one cell of a sweep: a run without a folder, and its budget; together.py: several at once
run_folder.py   what a run leaves, whole at any moment; signals.py: being told to stop
profile.py      saturation over the checkpoints of a run; loading.py puts their weights into a model
"""
