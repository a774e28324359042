"""Vector files of any supported format, streamed as blocks of rows.

    path, folder, glob ---> files.py      which files, in which order, of which one format
         one file      ---> registry.py   table: suffix -> module of that format
                                          (npy, npz, vecs, bins, hdf5, parquet, arrow)
         its Shard     ---> shard.py      what each format's module must give: n, dim, dtype, chunks of rows as given
    all shards         ---> source.py     VectorSource: shards agree on dim and dtype, blocks(), array sources too
         each chunk    ---> dtypes.py     as given -> float32, float16, int8 or uint8, native byte order, C order
         each block    ---> block.py      find_bad_rows(): NaN, infinity, beyond float32, null, ragged

columns.py turns Arrow columns into vectors, ids and payload (payload_values.py says how values become JSON);
members.py does so for named arrays (npz, HDF5); json_scalars.py has what both need. sniff.py guesses what a file that
does not fit its suffix really is.

Invariant: whatever can be told from headers is refused by open_source(), before a row is read; what only the rows
show is either an error that names file and row, or a bad row that find_bad_rows() names. No row is dropped silently.
Memory: one block (about 8 MB) and the format's own buffers, whatever the size of the files.
Not here: which paths may be read (the service checks roots), what is done with bad rows (build.py), id rules (ids.py).
"""

from index.sources.block import BadRow, Block, find_bad_rows
from index.sources.source import VectorSource, open_source

__all__ = ["BadRow", "Block", "VectorSource", "find_bad_rows", "open_source"]
