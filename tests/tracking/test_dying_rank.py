"""A rank that dies takes the run with it, but not what was measured."""

import os
import socket
import subprocess
import sys

import pytest

from normgrowth.records import Records

WORKER = """
import os, sys
import torch
from datetime import timedelta
from torch import nn
from torch.distributed.fsdp import fully_shard
from normgrowth import NormTracker

rank, out = int(os.environ["RANK"]), sys.argv[1]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=20))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
tracker = NormTracker(model, optimizer, every=1, out=out)
for step in range(1, 9):
    if step == 6 and rank == 1:
        os._exit(7)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


def test_a_rank_that_dies(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("gloo between local processes is tested on Linux")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "out")],
            env={**os.environ, **address, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in ranks]
    assert ranks[1].returncode == 7, said
    assert ranks[0].returncode != 0, "it cannot have gone on alone"
    steps, norms = Records.read(tmp_path / "out").series("norm")
    assert steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert (norms > 0).all()
