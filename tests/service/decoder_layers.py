"""Output layers and states for tests of the service: rows in groups, states that each look like a few rows."""

from __future__ import annotations

import json
import math

import numpy as np
from live import wait_for

PATIENCE_S = 240
"""The first build on a machine compiles kernels."""


def layer_and_states(rows=3000, dim=24, states=1500, seed=0):
    """A layer whose rows lie in groups, a bias, and states that each look like a few rows."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((60, dim)).astype(np.float32)
    weight = (centres[rng.integers(0, 60, rows)] + 0.7 * rng.standard_normal((rows, dim))).astype(np.float32)
    bias = (0.3 * rng.standard_normal(rows)).astype(np.float32)
    hidden = weight[rng.integers(0, rows, states)] + 0.5 * rng.standard_normal((states, dim)).astype(np.float32)
    return weight, bias, hidden.astype(np.float32)


def arrays_of(content):
    """The arrays of an octet-stream answer, by name."""
    line, _, rest = content.partition(b"\n")
    said, at, arrays = json.loads(line), 0, {}
    for name, dtype in said["dtypes"].items():
        shape = said["shapes"][name]
        arrays[name] = np.frombuffer(rest, dtype, math.prod(shape), offset=at).reshape(shape)
        at += arrays[name].nbytes
    assert at == len(rest)
    return arrays


def ended(client, job):
    """The job once it has ended."""
    wait_for(lambda: client.get(f"/v1/admin/builds/{job}").json()["state"] not in ("queued", "running"), PATIENCE_S)
    return client.get(f"/v1/admin/builds/{job}").json()
