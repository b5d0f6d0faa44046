"""Series of checkpoints, wherever they are and in whatever format: each an index of tensors whose bits can be reached.

series.py       `open_source`: checkpoints in the order of their steps; steps.py: steps from names
checkpoint.py   one opened checkpoint; storage/: mapped files, and where values lie in them
local_files.py  finds checkpoints on disk; file_groups.py: which files form one; safe_paths.py: names as paths
formats/        one file for each format; registry.py: their suffixes, how each is recognized and opened
remote/         checkpoints elsewhere, read by ranges: web servers, buckets, the hub
parameters.py   parameter name -> layer, role, counted or not; blocks.py, roles.py, selection.py: the rules for that
parameter_list.py   the verb `parameters`: a list of these
"""
