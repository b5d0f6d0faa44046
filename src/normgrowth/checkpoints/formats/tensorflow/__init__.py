"""TensorFlow's checkpoints (tensor bundles), read without TensorFlow.

`PREFIX.index` is a table in LevelDB's format from names to entries. An entry has the location of a tensor's values in a
data file such as `PREFIX.data-00000-of-00001`.

table.py          the table: blocks, keys, checksums
wire_format.py    the subset of protocol buffers that entries use
bundle.py         entries -> tensors, byte ranges, checksums
object_graph.py   names of variables that TensorFlow 2 saved as objects
reader.py         bundles on this machine
"""
