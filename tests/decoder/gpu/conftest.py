"""Kernels run in Triton's interpreter here, on CPU tensors; on a machine with a CUDA device they run there."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


def has_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


# Triton reads it when it is imported, and its own functions must be interpreted too.
if "triton" not in sys.modules and not has_device():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def run(request):
    """The twins or the kernels, by the parameter that gpu_layers.both gives."""
    from gpu_layers import implementation

    return implementation(request.param)
