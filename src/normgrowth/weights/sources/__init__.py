"""Where weights come from: every format becomes an index of tensors whose raw bits can be reached.

One file per format (`safetensors`, `pytorch`, `distributed`, `tensorflow`); `folder` finds the
checkpoints on disk, `hub` those of a repository, which `download` fetches where it must; `steps` reads steps
from names, `series` puts them in order.

Over a network, by ranges: `elsewhere` finds the checkpoints, `units` opens them as `remote` ones, `places`
(web servers and the hub, through `web` and `connections`) and `bucket` bring the bytes, `attempts` tries again.
"""
