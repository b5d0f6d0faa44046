"""Series of checkpoints, local or remote, in several formats. An opened checkpoint is an index of its tensors.

series.py       `open_source`: checkpoints in the order of their steps; steps.py: steps from file names
checkpoint.py   one opened checkpoint; storage/: mapped files, and the location of values in them
local_files.py  finds checkpoints on disk; file_groups.py: files that form one; safe_paths.py: checks of paths
foreign_files.py  names the type of files that are not weights; name_globs.py: globs that separate mixed series
formats/        one file per format; registry.py: suffixes, detection and readers of all formats
remote/         remote checkpoints, read by byte ranges: web servers, buckets, the Hugging Face hub
parameters/     parameter name -> layer, role, counted or not; the verb `parameters`
"""
