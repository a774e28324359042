"""The Triton kernels under one name, as reference.py has the twins: what GpuHead calls."""

from __future__ import annotations

from decoder.gpu.queries import project as project
from decoder.gpu.queries import quantise as quantise
from decoder.gpu.rerank import order as order
from decoder.gpu.rerank import score as score
from decoder.gpu.scan import scan as scan
from decoder.gpu.select import select as select
from decoder.gpu.walk import expand as expand
from decoder.gpu.walk import frontier as frontier
from decoder.gpu.walk import sample as sample
from decoder.gpu.walk import walk as walk
