"""Directories that programs without this package read models from by their path."""
from __future__ import annotations

import ctypes
import os
import weakref

from ._abi import ModelDirOptions, lib, path_bytes, text
from ._connection import shared
from ._owner import owner_uid


class ModelDir(os.PathLike):
    """
    A directory from model_dir(), for as long as it is open: to the end of a `with` block, or of the process. Its path
    is str(directory), os.fspath(directory), and the value of `with`.
    """

    def __init__(self, names: tuple[str, ...], path: str | os.PathLike | None, socket: str | None,
                 owner: int | str | None):
        self._connection = connection = shared(socket)
        self._handle = handle = ctypes.c_void_p()
        specs = (ctypes.c_char_p * len(names))(*map(text, names))
        options = ModelDirOptions(path=None if path is None else path_bytes(path), owner=owner_uid(owner))
        connection.call(lib.weightd_model_dir_new, connection.handle, specs, len(names), ctypes.byref(options),
                        ctypes.byref(handle))
        self._path = os.fsdecode(lib.weightd_model_dir_path(handle))
        # Also at the end of the interpreter.
        self._finalizer = weakref.finalize(self, connection.free, lib.weightd_model_dir_free, handle)

    def close(self) -> None:
        """Removes the directory. May be called twice; in a child of the process that made it, nothing is removed."""
        if self._finalizer.detach():
            with self._connection.use():
                lib.weightd_model_dir_free(self._handle)

    def __fspath__(self) -> str:
        return self._path

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<weightd.ModelDir {self._path!r}{'' if self._finalizer.alive else ', closed'}>"

    def __reduce__(self):
        raise TypeError("a model directory cannot be copied or pickled: this process holds it; pass its path")

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *exception) -> None:
        self.close()


def model_dir(*names: str, path: str | os.PathLike | None = None, socket: str | None = None,
              owner: int | str | None = None) -> ModelDir:
    """
    A read-only directory with the weights of a version and the files beside them, for libraries that load a path:

        with weightd.model_dir("llama-8b") as path:
            model = transformers.AutoModel.from_pretrained(path)

    Each of `names` is NAME or NAME@VERSION, on the host; several have a folder each, named like the buffer. The weights
    are links to descriptors of this process: processes of the same user can open them while this one lives and the
    directory is open, however they were started. What they have mapped by then stays. `path`: the directory to make,
    which must not exist or be empty; None: a private one in $XDG_RUNTIME_DIR, $TMPDIR or /tmp. `socket` and
    `owner`, of all the buffers, as in attach(). NotFound, Denied; Error with EOPNOTSUPP: the version is not stored as a file.
    """
    if not names:
        raise TypeError("model_dir() needs the name of a buffer")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"model_dir() needs names, not {type(name).__name__}")
    return ModelDir(names, path, socket, owner)
