"""Errors of the service, and the one table that turns every error into a status and a machine word.

ServiceError                      base of what service/ raises on purpose; each leaf has a status and a word
    MalformedError                400 wrong type, bad JSON, bad id, bad filter, unknown member
        BadNameError              400 a name that breaks the rules of names
    OutOfRangeError               422 well-formed, but out of range
    NotAuthorizedError            401
    NotFoundError                 404 collection, alias, point, decoder, job, upload
    ConflictError                 409 exists already; state of a job
        UnreadableModelError      409 the model that a decoder's completions run
    DeadlineError                 408
    BodyTooLargeError             413
    MediaTypeError                415
    UnsupportedError              501 a named feature that is not there
    NotReadyError                 503 loading, draining
    DamagedError                  503 names the file
    NoRoomError                   507 disk, memory or descriptors

status_of(error)                  -> Problem(status, code, sentence, headers), also for errors of index/ and decoder/
"""

from __future__ import annotations

import errno
import resource
import sqlite3
from dataclasses import dataclass, field

from decoder import errors as decoder_errors
from index import errors as index_errors


class ServiceError(Exception):
    """Base of everything that service/ raises on purpose."""

    status = 500
    code = "internal"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the answer carries."""
        return {}


class MalformedError(ServiceError):
    """Wrong type, bad JSON, bad id, bad filter, unknown member."""

    status, code = 400, "malformed"


class BadNameError(MalformedError):
    """A name that breaks the rules of names."""

    code = "bad_name"


class OutOfRangeError(ServiceError):
    """Well-formed, but out of range."""

    status, code = 422, "out_of_range"


class NotAuthorizedError(ServiceError):
    """No key, or the wrong one."""

    status, code = 401, "unauthorized"

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP asks of a 401."""
        return {"www-authenticate": "Bearer"}


class NotFoundError(ServiceError):
    """No collection, alias, point, decoder, job or upload of that name."""

    status, code = 404, "not_found"


class ConflictError(ServiceError):
    """It exists already, or a job is in a state that does not allow this."""

    status, code = 409, "conflict"


class UnreadableModelError(ConflictError):
    """The model that a decoder's completions run cannot be loaded as it lies there; asking again does not help."""

    code = "model_unreadable"


class DeadlineError(ServiceError):
    """The deadline passed before the answer was there."""

    status, code = 408, "deadline"


class BodyTooLargeError(ServiceError):
    """The body is over the limit."""

    status, code = 413, "too_large"


class MediaTypeError(ServiceError):
    """A content type or encoding that this route does not read."""

    status, code = 415, "media_type"


class UnsupportedError(ServiceError):
    """A feature that is not there; `feature` names it."""

    status, code = 501, "unsupported"

    def __init__(self, feature: str, advice: str = "") -> None:
        self.feature = feature
        super().__init__(f"Not supported: {feature}. {advice or 'docs/http.md lists what is there.'}")


class NotReadyError(ServiceError):
    """Loading, overloaded or shutting down; worth another try."""

    status, code = 503, "not_ready"

    @property
    def headers(self) -> dict[str, str]:
        """When to try again."""
        return {"retry-after": "1"}


class DamagedError(ServiceError):
    """Files of the collection or decoder are damaged; the sentence names the file."""

    status, code = 503, "damaged"


class NoRoomError(ServiceError):
    """No room on the disk, in memory or for descriptors."""

    status, code = 507, "no_room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What an error becomes on the wire."""

    status: int
    code: str
    sentence: str
    headers: dict[str, str] = field(default_factory=dict)


# First match counts: leaves stand before their bases.
STATUS_OF: tuple[tuple[type[Exception], int, str], ...] = (
    (index_errors.BudgetTooSmallError, 422, "budget_too_small"),
    (index_errors.OptionsError, 422, "out_of_range"),
    (index_errors.ShapeMismatchError, 400, "wrong_dimension"),
    (index_errors.BadQueryError, 400, "bad_query"),
    (index_errors.BadIdError, 400, "bad_id"),
    (index_errors.SourceError, 400, "bad_source"),
    (index_errors.IndexExistsError, 409, "exists"),
    (index_errors.UnknownIndexError, 503, "damaged"),
    (index_errors.CorruptIndexError, 503, "damaged"),
    (index_errors.UnsupportedFormatError, 503, "damaged"),
    (index_errors.ReadFailedError, 503, "read_failed"),
    (index_errors.DiskFullError, 507, "no_room"),
    (index_errors.BuildCancelledError, 409, "cancelled"),
    (index_errors.IndexClosedError, 503, "not_ready"),
    (index_errors.MissingExtraError, 501, "missing_extra"),
    (decoder_errors.DecoderOptionsError, 422, "out_of_range"),
    (decoder_errors.BadHiddenError, 400, "bad_hidden"),
    (decoder_errors.ConstraintError, 400, "bad_constraint"),
    (decoder_errors.BadWeightsError, 400, "bad_weights"),
    (decoder_errors.StaleDecoderError, 409, "stale"),
    (decoder_errors.UnknownDecoderError, 503, "damaged"),
    (decoder_errors.CorruptDecoderError, 503, "damaged"),
    (decoder_errors.DecoderClosedError, 503, "not_ready"),
)

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def status_of(error: Exception) -> Problem | None:
    """The problem that stands for an error; None for what nobody foresaw (500, logged with the request's id)."""
    if isinstance(error, ServiceError):
        return Problem(status=error.status, code=error.code, sentence=str(error), headers=error.headers)
    for kind, status, code in STATUS_OF:
        if isinstance(error, kind):
            headers = {"retry-after": "1"} if code == "not_ready" else {}
            return Problem(status=status, code=code, sentence=str(error), headers=headers)
    if isinstance(error, MemoryError):
        return Problem(status=507, code="no_room", sentence=f"Not enough memory: {error}. Ask for less at once.")
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        return Problem(
            status=507,
            code="no_room",
            sentence=f"No room on the disk at {error.filename or 'data_dir'}. Free some there.",
        )
    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        sentence = f"The limit of {limit} open files (ulimit -n) is used up. Raise it, or delete collections."
        return Problem(status=507, code="no_room", sentence=sentence)
    if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
        return Problem(status=507, code="no_room", sentence="No room on the disk of data_dir. Free some there.")
    return None
