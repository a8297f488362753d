"""What is compared with loops is compared closely."""

import pytest
import torch


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
