"""Collections over real indexes, built in this process: what a build job does, without the job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from index import BuildOptions, build
from service.catalogue import CollectionRecord
from service.served import DISTANCE_OF_METRIC


def put_index(
    engine: Any,
    name: str,
    vectors: Any,
    *,
    metric: str = "cosine",
    ids: Any = None,
    payload: Any = None,
    alias: str | None = None,
    **options: Any,
) -> Any:
    """Build vectors [n, dim] and let a collection of that name serve them; returns the open index."""
    vectors = np.asarray(vectors, dtype=None if isinstance(vectors, np.ndarray) else np.float32)
    generation = os.urandom(8).hex()
    if engine.exists(name):
        record = replace(engine.find(name).record, generation=generation)
    else:
        record = CollectionRecord(
            id=os.urandom(16).hex(),
            name=name,
            size=vectors.shape[1],
            distance=DISTANCE_OF_METRIC[metric],
            config=b"{}",
            generation=generation,
            generation_number=0,
            created_at=time.time(),
        )
    folder = engine.folder_of(record.id) / generation
    folder.parent.mkdir(parents=True, exist_ok=True)
    build(vectors, folder, options=BuildOptions(metric=metric, **options), ids=ids, payload=payload)
    index = engine.open(folder)
    engine.publish(record, index, alias=alias, may_replace=True)
    return index
