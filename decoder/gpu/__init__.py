"""The decoder on a CUDA device, in Triton, with a torch twin of every kernel. docs/gpu.md says what runs where.

head.py       GpuHead: hidden states in, the best tokens out, without leaving the device
queries.py    hidden states -> rotated, quantised queries
scan.py       every row's code scored, a block's best kept: the screen of a device
select.py     the blocks' best -> the best R of each query
rerank.py     exact logits of those, their order, log Z
walk.py       a walk over the graph in a fixed number of steps
reference.py  the twins: the same names and signatures in plain torch
layout.py     how rows lie in memory, and the 4-bit codes
exact.py      all rows, in torch
launch.py     what a kernel is compiled with; compile.py compiles all of it ahead of time and counts spilled registers
bench.py      checks and times on a device

Importing this package imports neither torch nor triton: its modules do.
"""
