"""Links shaped by calibration states: the contracts of their loops, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from decoder.kernels import reference_frame
from decoder.kernels import shaping as kernel
from decoder.shaping import in_degrees, link_to_weak, shape_links, weak_rows


def random_links(n: int, degree: int, seed: int = 0) -> np.ndarray:
    """Different rows each, none itself, ended by -1."""
    generator = np.random.default_rng(seed)
    links = np.full((n, degree), -1, np.int32)
    for row in range(n):
        others = np.setdiff1d(np.arange(n), [row])
        mine = generator.permutation(others)[: generator.integers(0, min(degree, n - 1) + 1)]
        links[row, : len(mine)] = mine
    return links


def require_links(links: np.ndarray) -> None:
    """-1 ends a row's links; none leads to itself or twice to another."""
    for row, mine in enumerate(links.tolist()):
        there = [target for target in mine if target >= 0]
        assert mine == there + [-1] * (len(mine) - len(there))
        assert len(set(there)) == len(there) and row not in there


class LinksContract:
    merge_links: ClassVar[Callable[..., None]]
    add_links: ClassVar[Callable[..., Any]]

    @pytest.mark.parametrize("share, degree", [(0, 4), (2, 4), (9, 4), (3, 20)])
    def test_merging(self, share, degree):
        links, targets = random_links(30, 6), random_links(30, 8, seed=1)
        starts = np.concatenate([[0], np.cumsum((targets >= 0).sum(axis=1))]).astype(np.int64)
        flat = targets[targets >= 0]
        out = np.full((30, degree + 2), -1, np.int32)
        # As many targets as there is room for at most: build() asks for half of the degree.
        self.merge_links(links, flat, starts, min(share, degree), degree, out)
        require_links(out)
        assert (out[:, degree:] == -1).all()
        for row in range(30):
            first = targets[row][targets[row] >= 0][: min(share, degree)].tolist()
            assert out[row, : len(first)].tolist() == first
            rest = [t for t in links[row].tolist() if t >= 0 and t not in first]
            assert [t for t in out[row].tolist() if t >= 0] == (first + rest)[:degree]

    @pytest.mark.parametrize("enough", [0, 2, 50])
    def test_adding(self, enough):
        links = random_links(30, 6)
        links = np.concatenate([links, np.full((30, 2), -1, np.int32)], axis=1)
        rows = np.array([3, 9, 20], np.int32)
        hosts = np.array([[9, 3, 4, -1, 5], [-1, -1, -1, -1, -1], [1, 2, 1, 20, 7]], np.int32)
        theirs, before = links.copy(), in_degrees(links)
        degrees = before[rows]
        added = self.add_links(links, rows, degrees, hosts, enough)
        assert added == reference_frame.add_links(theirs, rows, degrees, hosts, enough)
        assert links.tolist() == theirs.tolist()
        require_links(links)
        gained = in_degrees(links) - before
        assert gained.sum() == added and not np.delete(gained, rows).any() and not gained[9]
        assert (in_degrees(links)[rows] <= np.maximum(degrees, enough)).all()


class TestLinksReference(LinksContract):
    merge_links = staticmethod(reference_frame.merge_links)
    add_links = staticmethod(reference_frame.add_links)


class TestLinksNumba(LinksContract):
    merge_links = staticmethod(kernel.merge_links)
    add_links = staticmethod(kernel.add_links)


def test_tokens_that_answer_together_become_neighbours_the_most_frequent_first():
    links = np.array([[1, -1], [2, 0], [3, -1], [4, -1], [0, -1], [0, 1]], np.int32)
    answers = np.array([[0, 5], [5, 0], [0, 2], [4, 4]], np.int32)
    shaped = shape_links(links, answers, degree=3, share=2, room=1)
    assert shaped.dtype == np.int32
    assert shaped.tolist() == [
        [5, 2, 1, -1],
        [2, 0, -1, -1],
        [0, 3, -1, -1],
        [4, -1, -1, -1],
        [0, -1, -1, -1],
        [0, 1, -1, -1],
    ]


def test_no_row_links_to_itself_or_twice_to_another():
    generator = np.random.default_rng(5)
    answers = generator.integers(0, 60, (300, 12)).astype(np.int32)  # with repeats: only a caller's mistake
    shaped = shape_links(random_links(60, 10), answers, degree=14, share=7, room=3)
    require_links(shaped)
    assert shaped.shape == (60, 17) and ((shaped >= 0).sum(axis=1) <= 14).all()
    by_hand = np.zeros((60, 60), int)
    for row in answers:
        for lead in row[:8]:
            for other in row:
                if lead != other:
                    by_hand[lead, other] += 1
                    by_hand[other, lead] += 1
    for row in range(60):
        counts = by_hand[row][shaped[row, :7]]
        assert (np.diff(counts) <= 0).all() and counts[0] == by_hand[row].max()


def test_one_answer_a_state_shapes_nothing():
    links = random_links(20, 4)
    shaped = shape_links(links, np.arange(20, dtype=np.int32)[:, None], degree=4, share=2)
    assert shaped.tolist() == links.tolist()


def test_weak_rows_get_links_from_their_own_neighbours():
    links = np.array([[1, 2, -1, -1], [0, 2, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1]], np.int32)
    assert in_degrees(links).tolist() == [3, 3, 3, 0]
    weak = weak_rows(links, below=1)
    assert weak.tolist() == [3]
    assert link_to_weak(links, weak, links[weak][:, :3].copy(), enough=2) == 2
    assert links.tolist() == [[1, 2, 3, -1], [0, 2, 3, -1], [0, 1, -1, -1], [0, 1, 2, -1]]
    assert weak_rows(links, below=3).tolist() == [3] and link_to_weak(links, weak, links[weak], enough=2) == 0
