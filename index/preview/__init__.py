"""What proposes candidates: `graph`, `ivf` or `flat`, one interface, everything in memory.

Preview       a protocol: candidates(queries, effort) -> Candidates, resident bytes, save
load_preview  the preview that a folder's manifest names
Nodes, not rows: equal vectors are one node; `Groups` (groups.py) knows the rows of each.
"""

from index.preview.base import Candidates, Preview, Scratch
from index.preview.groups import Groups

__all__ = ["Candidates", "Groups", "Preview", "Scratch"]
