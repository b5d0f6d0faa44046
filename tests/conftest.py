"""Options and fixtures that several tests share."""

from pathlib import Path

import numpy as np
import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--data", type=Path, default=None, help="folder with the real corpora (penn, wikitext-2, ...)"
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def data(request):
    folder = request.config.getoption("--data")
    if folder is None or not folder.is_dir():
        pytest.skip("no corpora here: pytest --data DIR says where they are")
    return folder
