"""Loops over links: merging two kinds of them, and adding some where places are free."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def _holds(row: Any, count: Any, target: Any) -> Any:
    for e in range(count):  # noqa: SIM110 (Numba compiles no generator here)
        if row[e] == target:
            return True
    return False


@njit(cache=True, nogil=True)
def merge_links(links: Any, targets: Any, starts: Any, share: Any, degree: Any, out: Any) -> None:
    """out[i]: at most `share` of targets[starts[i] : starts[i + 1]], then links[i], at most `degree` in all.

    links: int32 (n, any), -1 ends a row; targets: int32, starts: int64 (n + 1,); out: int32 (n, >= degree), full of -1.
    """
    for i in range(links.shape[0]):
        k = 0
        for j in range(starts[i], starts[i + 1]):
            if k >= share:
                break
            out[i, k] = targets[j]
            k += 1
        for e in range(links.shape[1]):
            target = links[i, e]
            if target < 0 or k >= degree:
                break
            if not _holds(out[i], k, target):
                out[i, k] = target
                k += 1


@njit(cache=True, nogil=True)
def add_links(links: Any, rows: Any, degrees: Any, hosts: Any, enough: Any) -> Any:
    """Link hosts[a, ...] to rows[a] where they have a free place, until degrees[a] reaches `enough`; how many were added.

    links: int32 (n, degree), -1 ends a row, changed in place; rows: int32 (m,); degrees: int64 (m,), links to them so far;
    hosts: int32 (m, h), -1 for none.
    """
    added = 0
    for a in range(rows.shape[0]):
        row = rows[a]
        lacking = enough - degrees[a]
        for j in range(hosts.shape[1]):
            if lacking <= 0:
                break
            host = hosts[a, j]
            if host < 0 or host == row:
                continue
            count = 0
            while count < links.shape[1] and links[host, count] >= 0:
                count += 1
            if count < links.shape[1] and not _holds(links[host], count, row):
                links[host, count] = row
                added += 1
                lacking -= 1
    return added
