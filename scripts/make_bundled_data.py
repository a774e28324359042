#!/usr/bin/env python3
"""Make the bundled data, tests/data/wordnet and tests/data/marian, from output folders of fetch_data.py.

    python scripts/make_bundled_data.py OUT/wordnet_minilm tests/data/wordnet
    python scripts/make_bundled_data.py OUT/marian tests/data/marian [--downloads TMP]

The source's name says which one; bundled_marian.py makes the second. The first reads base.npy, meta.parquet, queries.npy,
queries.parquet and sample_queries.npy (float16, unit length) and writes

    points.parquet       id, text, pos, lexname, lemma_count, vector (int8)
    queries.parquet      text, vector (int8)
    sample_queries.npy   int8, other texts of the queries' kind, for `queries=` of a build
    manifest.json        how it was made and what int8 costs

All vectors are multiplied by one global scale and rounded, so that cosine and inner products survive (divide an inner
product by scale squared). Entries whose words match left_out_words.txt, and whole WordNet files about people, bodies
and feelings, are left out: the texts are shown to users. Needs numpy and pyarrow. The same input gives the same output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 24_000
QUERIES = 500
SAMPLE_QUERIES = 2_000
SEED = 20_260
POS = {"n": (1, "noun"), "v": (2, "verb"), "a": (3, "adjective"), "s": (3, "adjective"), "r": (4, "adverb")}
LEFT_OUT_FILES = {"noun.person", "noun.body", "noun.motive", "noun.feeling", "verb.body", "verb.emotion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Which rows, queries and sample queries of the whole set are taken (positions, ascending)."""

    rows: np.ndarray
    queries: np.ndarray
    sample_queries: np.ndarray
    kept_share: float


def main() -> None:
    """Make the folder that the source's name stands for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder wordnet_minilm or marian that fetch_data.py made")
    parser.add_argument("out", type=Path, help="folder to write, for example tests/data/wordnet")
    parser.add_argument("--downloads", type=Path, default=Path("tmp"), help="what fetch_data.py had as --tmp (marian)")
    arguments = parser.parse_args()
    if arguments.source.resolve().name == "marian":
        import bundled_marian

        figures = bundled_marian.make(arguments.source, arguments.out, arguments.downloads)
    else:
        figures = make_wordnet(arguments)
    json.dump(figures, sys.stdout, indent=1)
    print()


def make_wordnet(arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose the slice, round, write, measure; returns the manifest."""
    base = np.load(arguments.source / "base.npy").astype(np.float32)
    queries = np.load(arguments.source / "queries.npy").astype(np.float32)
    samples = np.load(arguments.source / "sample_queries.npy").astype(np.float32)
    meta = pq.read_table(arguments.source / "meta.parquet").to_pylist()
    query_texts = pq.read_table(arguments.source / "queries.parquet")["text"].to_pylist()
    texts = [f"{', '.join(entry['lemmas'])}: {entry['gloss']}" for entry in meta]

    unwanted = unwanted_words(Path(__file__).with_name("left_out_words.txt"))
    fit = np.array([m["lexname"] not in LEFT_OUT_FILES and not unwanted.search(t) for m, t in zip(meta, texts)])
    fit_queries = np.array([not unwanted.search(text) for text in query_texts])
    chosen = choose(base, queries, samples, fit=fit, fit_queries=fit_queries)

    taken = [base[chosen.rows], queries[chosen.queries], samples[chosen.sample_queries]]
    scale = 127.0 / max(float(np.abs(part).max()) for part in taken)
    rows8, queries8, samples8 = (np.rint(part * scale).astype(np.int8) for part in taken)

    arguments.out.mkdir(parents=True, exist_ok=True)
    write_points(
        arguments.out / "points.parquet", [meta[i] for i in chosen.rows], [texts[i] for i in chosen.rows], rows8
    )
    write_queries(arguments.out / "queries.parquet", [query_texts[i] for i in chosen.queries], queries8)
    np.save(arguments.out / "sample_queries.npy", samples8)
    figures = {
        "rows": len(rows8),
        "dim": int(rows8.shape[1]),
        "queries": len(queries8),
        "sample_queries": len(samples8),
        "scale": scale,
        "seed": SEED,
        "fit_rows": int(fit.sum()),
        "top10_of_whole_set_in_slice": round(chosen.kept_share, 4),
        "top10_kept_by_int8_cosine": round(kept_by_int8(taken[0], taken[1], rows8, queries8, cosine=True), 4),
        "top10_kept_by_int8_dot": round(kept_by_int8(taken[0], taken[1], rows8, queries8, cosine=False), 4),
        "source": json.loads((arguments.source / "manifest.json").read_text())["packages"],
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in sorted(arguments.out.glob("*.*"))
            if path.suffix in (".parquet", ".npy")
        },
    }
    (arguments.out / "manifest.json").write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def unwanted_words(path: Path) -> re.Pattern[str]:
    """A pattern that finds any stem of the file at the start of a word; `=stem` only as a whole word."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    stems = [line for line in lines if line and not line.startswith("#")]
    parts = [re.escape(stem[1:]) + r"\b" if stem.startswith("=") else re.escape(stem) for stem in stems]
    return re.compile(rf"\b(?:{'|'.join(parts)})", re.IGNORECASE)


def choose(
    base: np.ndarray, queries: np.ndarray, samples: np.ndarray, *, fit: np.ndarray, fit_queries: np.ndarray
) -> Slice:
    """Queries whose neighbours may be shown, their neighbours, those of sample queries, and random rows as filling."""
    rng = np.random.default_rng(SEED)
    nearest = top_rows(base, queries, k=10)
    # A query of whose ten nearest rows three are left out would be answered from a hole.
    answerable = np.flatnonzero(fit_queries & (fit[nearest].sum(axis=1) >= 8))
    query_rows = np.sort(rng.choice(answerable, QUERIES, replace=False))
    sample_rows = np.sort(rng.choice(len(samples), SAMPLE_QUERIES, replace=False))

    wanted = np.unique(np.concatenate([nearest[query_rows].ravel(), top_rows(base, samples[sample_rows], k=8).ravel()]))
    wanted = wanted[fit[wanted]]
    others = np.setdiff1d(np.flatnonzero(fit), wanted)
    filling = rng.choice(others, ROWS - len(wanted), replace=False)
    rows = np.sort(np.concatenate([wanted, filling]))
    kept = float(np.isin(nearest[query_rows], rows).mean())
    return Slice(rows=rows, queries=query_rows, sample_queries=sample_rows, kept_share=kept)


def top_rows(rows: np.ndarray, queries: np.ndarray, *, k: int) -> np.ndarray:
    """The k rows of largest inner product for each query, [n_queries, k], unordered."""
    found = []
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ rows.T
        found.append(np.argpartition(-scores, k, axis=1)[:, :k])
    return np.concatenate(found)


def kept_by_int8(
    rows: np.ndarray, queries: np.ndarray, rows8: np.ndarray, queries8: np.ndarray, *, cosine: bool
) -> float:
    """Share of the ten nearest rows by the given vectors that are also the ten nearest by the int8 ones."""
    rounded = rows8.astype(np.float32)
    if cosine:
        rounded /= np.linalg.norm(rounded, axis=1, keepdims=True)
    before, after = top_rows(rows, queries, k=10), top_rows(rounded, queries8.astype(np.float32), k=10)
    return float(np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(before, after)]))


def vector_column(vectors: np.ndarray) -> pa.Array:
    """int8 [n, dim] as a fixed-size list column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.int8()), vectors.shape[1])


def write_points(path: Path, meta: list[dict[str, Any]], texts: list[str], vectors: np.ndarray) -> None:
    """Ids are WordNet's own: a digit for the part of speech, then the eight digits of the synset."""
    table = pa.table(
        {
            "id": pa.array([POS[m["pos"]][0] * 10**8 + int(m["id"].split("-")[0]) for m in meta], pa.uint64()),
            "text": texts,
            "pos": [POS[m["pos"]][1] for m in meta],
            "lexname": [m["lexname"] for m in meta],
            "lemma_count": pa.array([len(m["lemmas"]) for m in meta], pa.int32()),
            "vector": vector_column(vectors),
        }
    )
    write(path, table)


def write_queries(path: Path, texts: list[str], vectors: np.ndarray) -> None:
    """Sentences and their vectors, in one table."""
    write(path, pa.table({"text": texts, "vector": vector_column(vectors)}))


def write(path: Path, table: pa.Table) -> None:
    """Dictionary encoding keeps an int8 at one byte, where Parquet's plain encoding would take four."""
    pq.write_table(table, path, compression="zstd", compression_level=19, row_group_size=4_096, use_dictionary=True)


if __name__ == "__main__":
    main()
