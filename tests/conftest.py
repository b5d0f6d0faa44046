"""Options and fixtures that several tests share."""

import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# `make test` draws the same examples each time; `make test-all` looks for new ones, and for more of them.
settings.register_profile("steady", derandomize=True)
settings.register_profile("search", max_examples=1000)
settings.load_profile("steady")

# A shell starts what runs in the background with Ctrl-C ignored, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--data", type=Path, default=None, help="folder with the real corpora (penn, wikitext-2, ...)"
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def one_thread():
    """For tensors so small that a second thread would only be waited for."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_random_numbers():
    """Torch's from seed 0, and afterwards as they were: no test notices another."""
    import torch

    before = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(before)


@pytest.fixture
def data(request):
    folder = request.config.getoption("--data")
    if folder is None or not folder.is_dir():
        pytest.skip("no corpora here: pytest --data DIR says where they are")
    return folder
