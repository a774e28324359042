"""`fullview demo`: the bundled data through a real server, and what that took.

    app.py      the command, from top to bottom         data.py      the bundled sentences and their vectors
    server.py   `fullview serve` in a process of its own, and questions to it
    measure.py  recall, memory, pages, latency          show.py      what people read

Invariant: the server is ended by its own process id, and its folder removed, however the demo ends, unless --keep.
"""

from service.demo.app import demo_app

app = demo_app
"""What service/cli.py mounts."""

__all__ = ["app", "demo_app"]
