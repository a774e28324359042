"""Points that changed since their collection's generation was built: kept durably, searched beside it.

operations.py  what a request asks for: bodies -> operations
resolve.py     operations + what is stored -> entries, all of a request or none
store.py       entries on the disk (SQLite), durable when commit() returns
delta.py       the same entries in memory: searched exactly, hiding older rows
written.py     one collection's store and delta together: the only way to change either
view.py        a generation and a delta as one set of points: what a request reads

Invariant: what was acknowledged is in the store, and the delta holds exactly what the store holds.
"""
