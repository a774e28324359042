"""`fullview bench decoder`: a decoder and other ways to the best tokens, on one output layer, in one process, in turn.

    app.py         the command                          run.py        a run from end to end
    heads.py       output layers and hidden states      entrant.py    what every way can do
    ours.py        walk, screen, exact, auto            exact_paths.py   matrix product and top-k: numpy, torch
    code_scan.py   every int8 row, reranked             graphs.py     hnswlib, faiss on the paper's transform
    svd_softmax.py a preview by singular vectors        kept.py       what earlier runs built
    quality.py     precision, log-probability error     tune.py       the least effort that is precise enough
    race.py        times, in turn                       cores.py      one number of threads for every library
    results.py     what is found; report.py: tables and files; picture.py: the PNG

Everyone is given the same float32 states and returns token ids; whole calls are timed.
"""
