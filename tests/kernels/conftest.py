"""Makes the helpers of this folder importable and provides thread pools."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def pool():
    from pelton._native import ThreadPool

    return ThreadPool(2)


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))
