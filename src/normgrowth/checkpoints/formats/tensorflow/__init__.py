"""TensorFlow's checkpoints (tensor bundles), read without TensorFlow.

`PREFIX.index` is a table in LevelDB's format from names to entries; an entry says where in which
`PREFIX.data-00000-of-00001` the values of a tensor lie.

table.py          the table: blocks, keys, checksums
wire_format.py    protocol buffers, as far as entries use them
bundle.py         entries -> tensors, byte ranges, checksums
object_graph.py   names of variables that TensorFlow 2 saved as objects
reader.py         bundles on this machine
"""
