"""Times of everybody at the same work, in turn, so that what else runs on the machine hits all alike.

time_calls   microseconds a token of one entrant, whole calls
race         turns of all entrants at one batch with one number of threads
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from service.bench.decoder.entrant import Entrant, Floats, Setting

WARM_CALLS = 3
LEAST_CALLS = 5


def time_calls(
    entrant: Entrant, states: Floats, k: int, setting: Setting, *, threads: int, batch: int, seconds: float
) -> tuple[float, str]:
    """(microseconds a token, what answered): calls with `batch` states each until so many seconds have passed."""
    if len(states) < batch:
        states = np.resize(states, (batch, states.shape[1]))
    batches = [np.ascontiguousarray(states[at : at + batch]) for at in range(0, len(states) - batch + 1, batch)]
    found = entrant.answer(batches[0], k, setting, threads)
    for some in batches[: WARM_CALLS - 1]:
        entrant.answer(some, k, setting, threads)
    calls, begun = 0, time.perf_counter()
    while True:
        entrant.answer(batches[calls % len(batches)], k, setting, threads)
        calls += 1
        spent = time.perf_counter() - begun
        if spent >= seconds and calls >= LEAST_CALLS:
            return spent / (calls * batch) * 1e6, found.mode


def race(
    runners: Sequence[tuple[Entrant, Setting]],
    states: Floats,
    k: int,
    *,
    threads: int,
    batch: int,
    seconds: float,
    turns: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(name -> microseconds a token of each turn, name -> what answered). Each turn begins with another entrant."""
    able = [(entrant, setting) for entrant, setting in runners if entrant.largest_batch >= batch]
    times: dict[str, list[float]] = {entrant.name: [] for entrant, _ in able}
    modes: dict[str, str] = {}
    for turn in range(turns):
        first = turn % len(able)
        for place, (entrant, setting) in enumerate(able[first:] + able[:first]):
            on_progress(turn * len(able) + place, turns * len(able))
            us, modes[entrant.name] = time_calls(
                entrant, states, k, setting, threads=threads, batch=batch, seconds=seconds
            )
            times[entrant.name].append(us)
    return times, modes
