"""An error that waits for the first use."""
from __future__ import annotations

from ._errors import Error


class Deferred:
    """
    The result of unpickling a handle that cannot be attached: each use raises the error, hasattr() too, which
    forwards all errors except AttributeError. An error in the unpickling itself would end a worker of a pool, or the
    thread that collects its results, and a caller would wait for ever.
    """

    __slots__ = ("_error",)

    def __init__(self, error: Error):
        self._error = error

    def __repr__(self) -> str:
        return f"<not attached: {self._error}>"

    def __reduce__(self):
        return Deferred, (self._error,)

    def __getattr__(self, name: str):
        self._use()

    def _use(self, *arguments):
        raise self._error.with_traceback(None)  # else it would collect those of all uses, with their frames

    # Python looks up these in the class.
    __getitem__ = __iter__ = __len__ = __contains__ = __enter__ = _use

    def __exit__(self, *exception) -> None:
        self._use()
