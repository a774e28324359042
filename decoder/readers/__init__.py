"""Readers of output layers, one module a kind of file. read_layer(path) chooses by what is there.

Files are mapped privately (copy on write), so nothing is read before it is used, nobody's file is changed, and arrays look
like any other to compiled code.
"""

from decoder.readers.parts import LayerParts
from decoder.readers.registry import read_bias, read_layer

__all__ = ["LayerParts", "read_bias", "read_layer"]
