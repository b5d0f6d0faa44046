"""Language models as in the paper, from words to a series of checkpoints, and grids of them.

train.py               `train`: one run; settings.py: what it is; build.py: model, optimizer and corpus
data/                  corpora and formal languages as rows of ids
evaluate.py            losses on held-out rows, and saturation; generate.py: words drawn from the model
run_files.py           what a run leaves, whole at any moment; interrupt.py: being asked to stop
sweep.py               `sweep`: a grid of runs; cells/: training cells, alone or stacked; the edge of growth
saturation_series.py   saturation over the checkpoints of a run; checkpoint_loader.py puts their weights into a model
"""
