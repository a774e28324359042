"""Hot loops in Numba: free functions over plain arrays, each with a slow twin in `reference`.

intrinsics  prefetch, half precision
rotate      the random rotation and its use on blocks of rows and on queries
encode      rows -> codes of 1, 2, 4 or 8 bits a dimension, and int8 rows for building
walk        the beam walk on a graph over the codes
scan        all codes, for small collections
score       exact scores from stored vectors

No `prange`: a query's parallelism is the threads of its caller, and Numba's own scheduler survives neither a fork nor
concurrent callers. Everything releases the GIL and is cached on disk.
"""
