"""A navigable graph over rows of int8 vectors: building it, ordering rows by nearness.

build   rows -> links, the same for a seed whatever the number of threads
order   near rows side by side (disk order)
Knows nothing of files, ids, collections or vocabularies.
"""

from index.graph.build import GraphOptions, GraphRows, build_graph, insert_rows
from index.graph.order import nearby_order

__all__ = ["GraphOptions", "GraphRows", "build_graph", "insert_rows", "nearby_order"]
