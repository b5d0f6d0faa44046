"""The tracker over real ranks (gloo): the records of one process, whatever the model is spread over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CHECKS = {
    2: (
        *("ddp", "fsdp", "tp", "refusals", "one_reduction", "logit_scale", "same_losses"),
        *("forward_only", "plain_parts", "drifting_ranks", "out_of_memory", "lora"),
    ),
    4: ("ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "lora"),
}


@pytest.mark.parametrize("ranks", CHECKS)
def test_the_same_numbers_as_one_process(ranks, tmp_path):
    """One launch for all checks, since a launch takes longer than they do."""
    done = subprocess.run(
        [sys.executable, "-m", "tracking.distributed_worker", str(ranks), str(tmp_path)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    failed = []
    for rank in range(ranks):
        file = tmp_path / f"results-{rank}.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        for check in CHECKS[ranks]:
            if found.get(check) != "ok":
                failed.append(f"{check}, rank {rank}: {found.get(check, 'did not get there')}")
    assert not failed, "\n".join([*failed, done.stderr[-3000:]])
    assert done.returncode == 0, done.stderr[-3000:]
