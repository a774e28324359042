"""The program of a worker: `python -P start.py NAME`, where NAME is a module of this folder without its "on_".

The package is loaded from its folder under its own name; its parents, which need packages that a peer's environment
does not have, are left empty.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

PACKAGE = "service.bench.workers"


def load_package(folder: Path) -> None:
    """Make PACKAGE importable from `folder`, without importing what stands above it."""
    parts = PACKAGE.split(".")
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = []
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None, folder
    assert spec.loader is not None, folder
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def main() -> None:
    """Serve until stdin ends."""
    load_package(Path(__file__).resolve().parent)
    serve = importlib.import_module(f"{PACKAGE}.serve")
    serve.serve(sys.argv[1])


if __name__ == "__main__":
    main()
