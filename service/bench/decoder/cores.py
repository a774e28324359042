"""One number of threads for every library that multiplies matrices in this process.

use_threads     numpy's BLAS, torch, faiss: those that are loaded
quiet_threads   before any of them is loaded: threads that wait must not spin while somebody else is measured
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
)
_LIBRARIES = ("openblas", "libmkl_rt", "libblis")


def quiet_threads() -> None:
    """Threads of OpenMP sleep while they wait. Only libraries that are loaded later take notice."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def use_threads(threads: int) -> bool:
    """Set the number; False where numpy's BLAS is of a kind whose number cannot be set here."""
    setters = _blas_setters()
    for setter in setters:
        setter(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if "faiss" in sys.modules:
        sys.modules["faiss"].omp_set_num_threads(threads)
    return bool(setters)


def _blas_setters() -> list[Callable[[int], object]]:
    """The functions of the BLAS libraries that this process has loaded."""
    found: list[Callable[[int], object]] = []
    for path in sorted(_loaded()):
        library = ctypes.CDLL(path)
        name = next((name for name in _SETTERS if hasattr(library, name)), None)
        if name is not None:
            found.append(getattr(library, name))
    return found


def _loaded() -> set[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return {path for path in paths if any(name in Path(path).name for name in _LIBRARIES) and Path(path).is_file()}
