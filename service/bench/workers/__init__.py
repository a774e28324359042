"""What is measured, each in a process of its own: one Searcher a module, asked over stdin and stdout.

    parent (worker_process.py)  --- {"do": "batch", ...} --->  serve.py  ---> Searcher of fullview or of a peer
                                <-- {"progress": [...]}  ---
                                <-- {"ok": {...}} or {"error": "..."}

A peer's process runs in its own environment, which holds numpy and the peer and nothing of this project: start.py
loads this package from its folder. So modules here import numpy, the standard library and each other; on_fullview.py
alone imports `index`.
"""
