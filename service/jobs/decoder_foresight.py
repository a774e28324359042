"""What can be said of a decoder's build before it starts: whether weight, bias and calibration states fit each other.

foresee()   reads headers only; what only a full read can tell is left to the build's process
"""

from __future__ import annotations

from service.jobs.foresight import Foresight
from service.jobs.messages import DecoderSpec


def foresee(spec: DecoderSpec) -> Foresight:
    """Raises what the client gets to read."""
    return Foresight(passes=1)
