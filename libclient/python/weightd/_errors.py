"""Errors: the errno and the sentence of libweightd, as exceptions."""
from __future__ import annotations

import errno
from typing import NamedTuple


class Error(OSError):
    """A call that libweightd refused or that failed: `errno` as in weightd.h; str() is its sentence."""

    def __str__(self) -> str:
        return self.strerror or ""


class NotFound(Error, FileNotFoundError):
    """ENOENT: no such buffer or version."""


class NotPublished(Error):
    """ENODATA: the buffer has no version yet, or the version no digest or no files."""


class Removed(Error):
    """ESTALE: the buffer was removed (and perhaps made again since)."""


class Denied(Error, PermissionError):
    """EACCES, EPERM: the permissions of the buffer or the socket do not allow it."""


class LayoutMismatch(Error):
    """EPROTOTYPE: the tensors are not the ones asked for."""


class AttributeMismatch(Error):
    """EMEDIUMTYPE: an attribute of the version is not the one required."""


class Torn(Error):
    """
    EUCLEAN: the writer of an exclusive buffer died during an update, or this reader of one was evicted. Another
    update repairs the buffer.
    """


class Updating(Error, BlockingIOError):
    """EAGAIN: the buffer is being updated in place; wait for the next version."""


class Damage(NamedTuple):
    """
    A damaged leaf, `begin` to `end` in the bytes of the version, and the names of all tensors with bytes in it. `leaf` None:
    the header of the file, and bytes of that.
    """

    leaf: int | None
    begin: int
    end: int
    tensors: list[str]


class DigestMismatch(Error):
    """EILSEQ: bytes differ from their digest. `damage` of verify(): list of Damage, empty if no part can be named."""

    damage: list[Damage] = []


class Timeout(Error, TimeoutError):
    """ETIMEDOUT: the deadline passed."""


class Disconnected(Error, ConnectionError):
    """ENOTCONN or errors of connect: no server, or it ended. ECHILD: after a fork."""


class Restarted(Error, ConnectionAbortedError):
    """ECONNABORTED: the server was started anew meanwhile; whether it did what was asked is unknown."""


_CLASSES = {
    errno.ENOENT: NotFound,
    errno.ENODATA: NotPublished,
    errno.ESTALE: Removed,
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.EPROTOTYPE: LayoutMismatch,
    errno.EMEDIUMTYPE: AttributeMismatch,
    errno.EUCLEAN: Torn,
    errno.EAGAIN: Updating,
    errno.EILSEQ: DigestMismatch,
    errno.ETIMEDOUT: Timeout,
    errno.ENOTCONN: Disconnected,
    errno.ECHILD: Disconnected,
    errno.ECONNABORTED: Restarted,
}


def error(code: int, sentence: str) -> Error:
    """The exception for a positive errno."""
    return _CLASSES.get(code, Error)(code, sentence)
