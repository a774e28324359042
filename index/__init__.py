"""Two-stage vector search: a compressed preview in memory, full vectors on disk, exact scores.

build        a file of vectors -> an index folder
open_index   a folder -> OpenIndex, whose search() any number of threads may call
"""

from index.allowed import AllowedRows
from index.build import build, check_build
from index.errors import VectorIndexError
from index.exact import RecallEstimate
from index.fold import Changes, FoldOptions, fold
from index.hits import Hits, Work
from index.options import BuildOptions, IoMode, Metric, OpenOptions, PreviewKind, SearchOptions
from index.progress import BuildProgress
from index.report import BuildReport
from index.search import OpenIndex, open_index

__all__ = [
    "AllowedRows",
    "BuildOptions",
    "BuildProgress",
    "BuildReport",
    "Changes",
    "FoldOptions",
    "Hits",
    "IoMode",
    "Metric",
    "OpenIndex",
    "OpenOptions",
    "PreviewKind",
    "RecallEstimate",
    "SearchOptions",
    "VectorIndexError",
    "Work",
    "build",
    "check_build",
    "fold",
    "open_index",
]
