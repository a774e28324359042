"""Payloads as typed columns: what a filter asks of every row is a pass over arrays, not over JSON.

ColumnBuilder             payloads as they come; its views never change
ColumnsWriter, ColumnsFile   payload/columns.bin of a generation, written once, mapped
Column, PayloadColumns    what both give; asking.py has what can be asked of cells
"""

from index.columns.column import Cells, Column, PayloadColumns, Strings
from index.columns.growing import ColumnBuilder
from index.columns.kinds import Kind, Names
from index.columns.layout import COLUMNS_NAME
from index.columns.reading import ColumnsFile
from index.columns.times import NO_TIME, parse_time
from index.columns.writing import ColumnsWriter

__all__ = [
    "COLUMNS_NAME",
    "NO_TIME",
    "Cells",
    "Column",
    "ColumnBuilder",
    "ColumnsFile",
    "ColumnsWriter",
    "Kind",
    "Names",
    "PayloadColumns",
    "Strings",
    "parse_time",
]
