"""
The control: a regular file shares its pages between processes just as well, and a process that may write to it changes
it under its readers. Two attempts at each, with a reader that has the weights mapped.
"""
import errno
import os
import pathlib
import shutil
import signal
import struct
from typing import NamedTuple

from process import Failed, Process, script


OTHERS = bytes(byte & 0xBF ^ 0x80 for byte in range(256))  # no float becomes infinite


class Attempt(NamedTuple):
    """
    change   "overwritten" or "truncated"
    of       "regular file" or "version"
    refused  the name of the errno, or ""
    reader   "reads the same", "reads other values", or the signal that ended it
    """

    change: str
    of: str
    refused: str
    reader: str


def overwrite(path):
    """Gives other values to the first half of the data, in place."""
    with open(path, "r+b", buffering=0) as file:
        (n_header,) = struct.unpack("<Q", file.read(8))
        begin = 8 + n_header
        n = (os.fstat(file.fileno()).st_size - begin) // 2
        file.seek(begin)
        data = file.read(n)
        file.seek(begin)
        file.write(data.translate(OTHERS))


def truncate(path):
    os.truncate(path, 4096)


ATTEMPTS = {"overwritten": overwrite, "truncated": truncate}


def run(python, folder, served, copy):
    """All four, in the order of EXPECTED. `copy` is the path of the file that they damage. Failed."""
    shutil.copy(pathlib.Path(folder, "model.safetensors"), copy)
    version = served.command(script(python, "reader", "{}/model.safetensors"))
    return [*attempt_all("regular file", script(python, "reader", copy), {}), *attempt_all("version", version, served.environment)]


def attempt_all(of, command, environment):
    """Starts a reader by `command`. After each change of the file that it has open, it computes the sum again."""
    with Process(command, environment) as process:
        first = process.report()
        for change, make in ATTEMPTS.items():
            refused, reader = "", ""
            try:
                make(first["path"])
            except OSError as e:
                refused = errno.errorcode[e.errno]
            try:
                process.send("again")
                reader = "reads the same" if process.report()["sum"] == first["sum"] else "reads other values"
            except (BrokenPipeError, Failed):
                reader = signal.Signals(-process.process.wait()).name
            yield Attempt(change, of, refused, reader)


REFUSED = "EPERM" if os.geteuid() == 0 else "EACCES"  # by the seal, or before that by the mode, which does not bind root
EXPECTED = [
    Attempt("overwritten", "regular file", "", "reads other values"),
    Attempt("truncated", "regular file", "", "SIGBUS"),
    Attempt("overwritten", "version", REFUSED, "reads the same"),
    Attempt("truncated", "version", REFUSED, "reads the same"),
]
