"""The benchmark: fullview and its peers on one set of vectors, each in a process of its own.

    app.py            the command                         run.py        a run from end to end
    datasets.py       sets and the files made of them     peers.py      what is known of each peer
    environments.py   a venv for each peer                measure.py    build, open, sweep
    worker_process.py the parent's side of the protocol   compare.py    equal recall, in turn
    workers/          the children's side                 report.py     tables and files; picture.py the PNG
    decoder/          the benchmark of decoders: another one, with the same display.py, machine.py, numbers.py, working.py

Every contender, fullview too, is built in one process and searched in a fresh one, and is asked the same questions.
"""

from service.bench.app import bench_app

app = bench_app
"""What service/cli.py mounts."""

__all__ = ["app", "bench_app"]
