"""Slow twins of this package's kernels: the same names and signatures, written to be read.

One test class runs both (tests/index/test_kernels_*.py). Integers agree exactly; sums of floats agree within rounding, since
compiled loops may add in another order. Nothing in the product calls these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from index.kernels.score import COSINE, L2


def _hadamard(size: int) -> Any:
    """The Walsh-Hadamard matrix of a power of two, scaled to be orthogonal."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2.0)
    return matrix


def rotate(x: Any, signs: Any) -> None:
    """x = R x in place: in each round signs, then a transform of the leading or of the trailing power of two."""
    size = 1 << (len(x).bit_length() - 1)
    matrix = _hadamard(size)
    y = x.astype(np.float64)
    for r, sign in enumerate(signs):
        y *= sign
        part = slice(0, size) if r % 2 == 0 else slice(len(x) - size, len(x))
        y[part] = matrix @ y[part]
    x[:] = y


def prepare_rows(vectors: Any, mean: Any, signs: Any, unit: Any, out: Any) -> None:
    """out[i] = R (x - mean), x of length 1 first if `unit`; a zero row stays zero."""
    for vector, row in zip(vectors, out):
        length = np.linalg.norm(vector.astype(np.float64))
        row[:] = 0.0
        row[: len(vector)] = (vector / length if unit and length > 0 else vector) - mean
        rotate(row, signs)


def quantise_queries(rotated: Any, out: Any, scales: Any, sums: Any, lengths: Any) -> None:
    """Queries as int8: the largest component becomes 127 or -127."""
    largest = np.abs(rotated).max(axis=1)
    scales[:] = np.where(largest > np.float32(1e-30), largest / np.float32(127.0), np.float32(1.0))
    out[:] = np.rint(rotated * (np.float32(1.0) / scales)[:, None])
    sums[:] = out.sum(axis=1, dtype=np.int64)
    lengths[:] = np.linalg.norm(rotated.astype(np.float64), axis=1)


def unpack(codes: Any, bits: Any) -> Any:
    """Levels int64 (n, width) of packed codes uint8 (n, stride): dimension p * stride + t is in bits p * bits.. of byte t."""
    mask = (1 << bits) - 1
    return np.concatenate([(codes >> (p * bits)) & mask for p in range(8 // bits)], axis=1).astype(np.int64)


def encode_rows(rotated: Any, bits: Any, ratios: Any, codes: Any, lengths: Any, scales: Any) -> None:
    """Codes of rotated rows: of the steps tried, the first whose code has the largest cosine with the row."""
    middle = ((1 << bits) - 1) / 2
    for i, y in enumerate(rotated.astype(np.float64)):
        lengths[i] = y @ y
        deviation = np.sqrt(lengths[i] / len(y))
        tried = []
        for ratio in ratios:
            step = ratio * deviation / middle if deviation > 1e-30 else 1.0
            levels = np.clip(np.rint(y / step + middle), 0, 2 * middle)
            u = levels - middle
            tried.append((y @ u / np.linalg.norm(u) if u.any() else 0.0, levels, y @ u))
        _, levels, along = max(tried, key=lambda found: found[0])
        scales[i] = lengths[i] / along if along > 0 else 0.0
        planes = levels.astype(np.uint8).reshape(8 // bits, -1)
        codes[i] = sum(plane << np.uint8(p * bits) for p, plane in enumerate(planes))


def encode_int8(rotated: Any, codes: Any, lengths: Any, scales: Any) -> None:
    """int8 rows for building graphs: the largest component becomes 127 or -127."""
    sums = np.empty(len(rotated), np.float32)
    quantise_queries(rotated, codes, scales, sums, lengths)
    lengths[:] = np.einsum("ij,ij->i", rotated, rotated, dtype=np.float64)


def dot_int8(rows: Any, i: Any, query: Any) -> Any:
    """Sum over t of rows[i, t] * query[t]."""
    return int(rows[i].astype(np.int64) @ query.astype(np.int64))


def dot_code(codes: Any, i: Any, query: Any, bits: Any) -> Any:
    """Sum over dimensions of level * query."""
    return int(unpack(codes[i : i + 1], bits)[0] @ query.reshape(-1).astype(np.int64))


def _estimates(codes: Any, scalars: Any, bits: Any, query: Any, scale: Any, total: Any) -> Any:
    """Distances float32 (n,) of all rows by their codes, up to a constant of the query."""
    offset = np.float32(((1 << bits) - 1) * 0.5) * np.float32(total)
    dots = unpack(codes, bits) @ query.reshape(-1).astype(np.int64)
    twice = np.float32(2.0) * np.float32(scale)
    return (scalars[:, 0] - twice * scalars[:, 1] * (dots.astype(np.float32) - offset)).astype(np.float32)


def scan_queries(
    codes: Any, scalars: Any, bits: Any, queries: Any, query_scales: Any, query_sums: Any, rows: Any, distances: Any
) -> None:
    """For each query the nearest rows by their codes, of equals the lower row."""
    keep = rows.shape[1]
    for q in range(len(queries)):
        far = _estimates(codes, scalars, bits, queries[q], query_scales[q], query_sums[q])
        order = np.lexsort((np.arange(len(far)), far))[:keep]
        rows[q], distances[q] = order, far[order]


def walk_queries(
    codes: Any,
    scalars: Any,
    bits: Any,
    links: Any,
    queries: Any,
    query_scales: Any,
    query_sums: Any,
    entries: Any,
    visited: Any,
    mark: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    hops: Any,
    scored: Any,
) -> Any:
    """A beam walk for each query with a Python set of visited rows; returns the last mark used, as the kernel does.

    Of equally near rows the one that came first into the beam stays first. The walk gives up when the kernel's table of
    visited rows would be three quarters full.
    """
    beam, room = rows.shape[1], len(visited) // 4 * 3 - links.shape[1]
    for q in range(len(queries)):
        far = _estimates(codes, scalars, bits, queries[q], query_scales[q], query_sums[q])
        seen: set[int] = set()
        expanded: set[int] = set()
        best: list[int] = []
        fresh = [int(e) for e in dict.fromkeys(entries.tolist())]
        hops[q] = scored[q] = 0
        while True:
            seen.update(fresh)
            scored[q] += len(fresh)
            # sorted() is stable: old rows stay before new ones, new ones in the order in which they were seen.
            best = sorted(best + fresh, key=lambda i: far[i])[:beam]
            waiting = [i for i in best if i not in expanded]
            if not waiting or scored[q] > room:
                break
            expanded.add(waiting[0])
            hops[q] += 1
            mine = links[waiting[0]].tolist()
            mine = mine[: mine.index(-1)] if -1 in mine else mine
            fresh = [i for i in dict.fromkeys(mine) if i not in seen]
        counts[q] = len(best)
        rows[q, : len(best)], distances[q, : len(best)] = best, far[best]
    return mark + len(queries)


def score_pairs(queries: Any, query_lengths: Any, flat: Any, query_of: Any, starts: Any, metric: Any, out: Any) -> None:
    """out[j] = score of query query_of[j] and the vector at flat[starts[j] :], in float64."""
    dim = queries.shape[1]
    values = flat.view(np.float16) if flat.dtype == np.uint16 else flat
    for j, (q, start) in enumerate(zip(query_of, starts)):
        query, x = queries[q].astype(np.float64), values[start : start + dim].astype(np.float64)
        if metric == L2:
            out[j] = -np.linalg.norm(query - x)
        elif metric == COSINE:
            both = np.linalg.norm(query) * np.linalg.norm(x)
            out[j] = np.clip(query @ x / both, -1.0, 1.0) if both > 0 else 0.0
        else:
            out[j] = query @ x


def squared_lengths(queries: Any) -> Any:
    """|q|^2 of each query."""
    return np.einsum("ij,ij->i", queries, queries, dtype=np.float64).astype(np.float32)


def halves_to_float32(halves: Any, out: Any) -> None:
    """out[i] = the float16 whose bits are halves[i]."""
    out[:] = halves.view(np.float16)


def choose_candidates(
    nodes: Any, distances: Any, counts: Any, scalars: Any, reach: Any, k: Any, depth: Any, chosen: Any
) -> None:
    """The candidates worth reading, moved to the front of each row of nodes; the rest of the row means nothing then."""
    for q in range(len(nodes)):
        mine, far = nodes[q, : counts[q]].copy(), distances[q, : counts[q]]
        if depth > 0:
            kept = mine[:depth]
        elif len(mine) <= k:
            kept = mine
        else:
            near = far - reach[q] * scalars[mine, 1] <= far[k - 1]
            near[:k] = True
            kept = mine[near]
        nodes[q, : len(kept)] = kept
        chosen[q] = len(kept)


def first_row(node: Any, group_nodes: Any, group_extra: Any) -> Any:
    """Row of a node's first copy: the nodes before it, and what their copies add."""
    before = [int(extra) for group, extra in zip(group_nodes, group_extra) if group < node]
    return int(node) + (before[-1] if before else 0)


def copies(node: Any, group_nodes: Any, group_extra: Any) -> Any:
    """How many rows hold the node's vector."""
    return first_row(node + 1, group_nodes, group_extra) - first_row(node, group_nodes, group_extra)


def list_places(
    nodes: Any, chosen: Any, group_nodes: Any, group_extra: Any, k: Any, page_rows: Any, offsets: Any
) -> Any:
    """The places of the first k copies of each chosen node, each place once a query, ascending."""
    places: list[int] = []
    for q in range(len(nodes)):
        offsets[q] = len(places)
        mine: set[int] = set()
        for node in nodes[q, : chosen[q]].tolist():
            first = first_row(node, group_nodes, group_extra)
            mine.update(
                row // page_rows for row in range(first, first + min(copies(node, group_nodes, group_extra), k))
            )
        places.extend(sorted(mine))
    offsets[len(nodes)] = len(places)
    return np.array(places, np.int64)


def list_rows(
    places: Any,
    offsets: Any,
    n: Any,
    page_rows: Any,
    place_size: Any,
    vector_size: Any,
    query_of: Any,
    rows: Any,
    starts: Any,
) -> Any:
    """Every row on the places read; returns how many."""
    listed = [
        (q, row, e * place_size + s * vector_size)
        for q in range(len(offsets) - 1)
        for e in range(offsets[q], offsets[q + 1])
        for s, row in enumerate(range(places[e] * page_rows, min((places[e] + 1) * page_rows, n)))
    ]
    for out, column in zip((query_of, rows, starts), zip(*listed)):
        out[: len(listed)] = column
    return len(listed)


def keep_best(
    query_of: Any, scores: Any, codes: Any, rows: Any, best_scores: Any, best_codes: Any, best_rows: Any, counts: Any
) -> None:
    """Put hits among each query's k best: here a sorted list, best hit first."""
    k = best_scores.shape[1]
    for q in np.unique(query_of):
        held, new = int(counts[q]), query_of == q
        all_scores = np.concatenate([best_scores[q, :held], scores[new]])
        all_codes = np.concatenate([best_codes[q, :held], codes[new]])
        all_rows = np.concatenate([best_rows[q, :held], rows[new]])
        order = np.lexsort((all_codes, -all_scores))[:k]
        counts[q] = len(order)
        best_scores[q, : len(order)] = all_scores[order]
        best_codes[q, : len(order)] = all_codes[order]
        best_rows[q, : len(order)] = all_rows[order]


def sort_best(best_scores: Any, best_codes: Any, best_rows: Any, counts: Any) -> None:
    """Best hit first, of equals the smaller id."""
    for q in range(len(counts)):
        order = np.lexsort((best_codes[q, : counts[q]], -best_scores[q, : counts[q]]))
        for best in (best_scores, best_codes, best_rows):
            best[q, : len(order)] = best[q, order]


def count_found(true_places: Any, places: Any, offsets: Any, found: Any) -> None:
    """found[q] = how many of true_places[q] are among the places of query q."""
    for q in range(len(true_places)):
        found[q] = int(np.isin(true_places[q], places[offsets[q] : offsets[q + 1]]).sum())


def permute_rows(rows: Any, order: Any) -> None:
    """rows[i] = old rows[order[i]]."""
    rows[:] = rows[order]


def bisect(codes: Any, scales: Any, order: Any, page_rows: Any, seed: Any, signal: Any) -> None:
    """Rearrange `order` in place unless stopped. Cuts along the principal axis: near, but not the same, order."""
    n = len(order)
    if signal[0]:
        return
    if n <= page_rows:
        signal[1] += n
        return
    y = codes[order].astype(np.float64) * scales[order, None]
    axis = np.linalg.svd(y - y.mean(axis=0), full_matrices=False)[2][0]
    order[:] = order[np.argsort(y @ axis, kind="stable")]
    cut = -(-n // page_rows) // 2 * page_rows
    bisect(codes, scales, order[:cut], page_rows, seed, signal)
    bisect(codes, scales, order[cut:], page_rows, seed, signal)


def _between(rows: Any, scalars: Any, i: Any, j: Any) -> Any:
    """Squared distance of rows i and j, float32."""
    inner = scalars[i, 1] * scalars[j, 1] * np.float32(dot_int8(rows, i, rows[j])) + scalars[i, 2] * scalars[j, 2]
    return np.float32(scalars[i, 0] + scalars[j, 0] - np.float32(2.0) * inner)


def _diverse(rows: Any, scalars: Any, target: Any, near: list[int], most: Any, alpha: Any) -> list[int]:
    """hnswlib's diversity rule over rows `near`, nearest first: kept unless a kept one is nearer to it than the target."""
    kept: list[int] = []
    for i in near:
        own = _between(rows, scalars, i, target)
        if i != target and i not in kept and all(alpha * _between(rows, scalars, i, j) >= own for j in kept):
            kept.append(i)
        if len(kept) == most:
            break
    return kept


def link_rows(
    rows: Any,
    scalars: Any,
    links: Any,
    batch: Any,
    entries: Any,
    beam: Any,
    most: Any,
    alpha: Any,
    visited: Any,
    mark: Any,
) -> Any:
    """links[p, :most] for each row p of the batch, found by a beam walk in the graph as it stands; returns the last mark."""
    for p in batch.tolist():
        far = {}
        expanded: set[int] = set()
        fresh = list(dict.fromkeys(entries.tolist()))
        best: list[int] = []
        while True:
            far.update({i: _between(rows, scalars, i, p) for i in fresh})
            best = sorted(best + fresh, key=lambda i: far[i])[:beam]
            waiting = [i for i in best if i not in expanded]
            if not waiting:
                break
            expanded.add(waiting[0])
            fresh = [i for i in links[waiting[0]].tolist() if i >= 0 and i not in far]
        kept = _diverse(rows, scalars, p, best, most, alpha)
        links[p] = -1
        links[p, : len(kept)] = kept
        mark = mark % 255 + 1
    return mark


def add_reverse(
    rows: Any, scalars: Any, links: Any, sources: Any, starts: Any, targets: Any, alpha: Any, first: Any, last: Any
) -> None:
    """Link targets[g] to its sources for first <= g < last; a row that would be over-full keeps the diverse ones."""
    degree = links.shape[1]
    for g in range(first, last):
        t = int(targets[g])
        near = [i for i in links[t].tolist() if i >= 0] + sources[starts[g] : starts[g + 1]].tolist()
        if len(near) > degree:
            near.sort(key=lambda i: _between(rows, scalars, i, t))
            near = _diverse(rows, scalars, t, near, degree, alpha)
        links[t] = -1
        links[t, : len(near)] = near


def connect_rows(links: Any, entries: Any, members: Any) -> Any:
    """Make every row of `members` reachable: each lost row is linked from a row that its own links lead to, if any."""
    added = 0
    while True:
        parents = {int(e): -1 for e in entries}
        queue = list(parents)
        for at in queue:
            for i in links[at].tolist():
                if i >= 0 and i not in parents:
                    parents[i] = at
                    queue.append(i)
        lost = [row for row in members.tolist() if row not in parents]
        if not lost:
            return added
        near = [(row, at) for row in lost for at in links[row].tolist() if at in parents]
        for row, at in [*near, *((lost[0], at) for at in queue)]:
            spare = [e for e, i in enumerate(links[at].tolist()) if i < 0 or parents[i] != at]
            free = [e for e in spare if links[at, e] < 0]
            if spare:
                links[at, free[0] if free else spare[-1]] = row
                added += 1
                break


def repair_links(
    rows: Any, scalars: Any, links: Any, places: Any, alpha: Any, first: Any, last: Any, repaired: Any
) -> Any:
    """Links in the new numbering; a row that lost one gets the diverse ones of what it has and of what the lost ones had."""
    lost_some = 0
    for t in range(first, last):
        own = int(places[t])
        if own < 0:
            continue
        mine = [int(i) for i in links[t] if i >= 0]
        near = [int(places[i]) for i in mine if places[i] >= 0]
        lost = [i for i in mine if places[i] < 0]
        if lost:
            lost_some += 1
            near += [
                int(places[j]) for i in lost for j in links[i][: (links.shape[1] + 1) // 2] if j >= 0 and places[j] >= 0
            ]
            near = [j for j in dict.fromkeys(near) if j != own]
            near.sort(key=lambda j: _between(rows, scalars, j, own))
            near = _diverse(rows, scalars, own, near, links.shape[1], alpha)
        repaired[own] = -1
        repaired[own, : len(near)] = near
    return lost_some


def reverse_pairs(links: Any, batch: Any, sources: Any, targets: Any) -> Any:
    """The links of a batch as pairs (target, source) in the batch's order; returns how many."""
    pairs = [(p, t) for p in batch.tolist() for t in links[p].tolist() if t >= 0]
    for k, (source, target) in enumerate(pairs):
        sources[k], targets[k] = source, target
    return len(pairs)
