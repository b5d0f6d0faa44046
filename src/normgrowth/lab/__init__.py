"""Train language models as in the paper, from text to a series of checkpoints, and sweep over their settings.

training_loop.py   one run; run.py: its result; settings.py: its settings; build.py: model, optimizer, corpus
data/          corpora and formal languages as rows of ids
evaluate.py    loss on held-out rows, and saturation; generate.py: words sampled from the model
run_files.py   the output folder of a run, complete at any time; interrupt.py: stopping between steps
sweep_run.py       a grid of runs; sweep_result.py: its result; cells/: training of cells, the edge of growth
"""
