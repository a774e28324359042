"""A navigable graph over rows of int8 vectors: building it, shaping it by queries, ordering rows by nearness.

build   rows -> links, the same for a seed whatever the number of threads
shape   rows that answer one sample query together become neighbours
order   near rows side by side (disk order)
Knows nothing of files, ids, collections or vocabularies.
"""

from index.graph.build import GraphOptions, GraphRows, build_graph, insert_rows
from index.graph.order import nearby_order
from index.graph.shape import shape_links

__all__ = ["GraphOptions", "GraphRows", "build_graph", "insert_rows", "nearby_order", "shape_links"]
