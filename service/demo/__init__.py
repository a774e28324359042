"""`fullview demo`: the bundled data through a real server, and what that took.

    app.py      the command, from top to bottom         show.py      what people read
    server.py   `fullview serve` in a process of its own, and questions to it; follow.py: a job to its end
    data.py     the bundled sentences and vectors       measure.py   recall, memory, pages, latency
    decoder_data.py, decoder_part.py, decoder_measure.py   the same for an output layer and its next words

Invariant: the server is ended by its own process id, and its folder removed, however the demo ends, unless --keep.
"""

from service.demo.app import demo_app

app = demo_app
"""What service/cli.py mounts."""

__all__ = ["app", "demo_app"]
