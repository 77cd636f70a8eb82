"""
The token of a job, which all ranks of one start of a program find, and those of the next start.

$WEIGHTD_JOB has it under `weightctl train run`. Else it lies in a file of mode 0600, and the first rank that holds the
lock on an empty one creates the job: no rank waits for another, and one that is killed there leaves the file empty.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import itertools
import os
import pathlib
import re
import stat
import urllib.parse
import warnings
from ctypes import byref, c_uint64, c_void_p
from typing import Callable, Iterator

from .._abi import TOKEN_MAX, JobOptions, lib, text
from .._connection import Connection
from .._errors import Error, error
from .._job import jobs, remove_job
from ._abi import free
from ._mesh import Mesh, launched_by

_LINGER_MS = {"named": 0, "launched": 600_000, "alone": 60_000, "window": 10_000}  # without a rank; 0: for ever
_MARK = b"?"  # in the file of a job that is being created
_ordinals = itertools.count(1)  # jobs of this process without a name


class Job:
    """
    token  which makes a process a rank
    """

    def __init__(self, token: str, file: pathlib.Path | None = None, is_ours: bool = False, is_created: bool = False,
                 find: Callable[[], Job] | None = None):
        """
        `is_ours`: the file is in our folder. `is_created`: this process created the job. `find` reads the file again, or
        creates another job in it.
        """
        self.token, self._file, self._is_ours, self._is_created = token, file, is_ours, is_created
        self._find = find

    def renewed(self) -> Job | None:
        """
        Another job in the place of one that cannot be opened any more: the first rank that asks removes it and creates
        the other. None: the job is not from a file, and there can be no other.
        """
        if self._find is None:
            return None
        with contextlib.suppress(FileNotFoundError), _locked(self._file) as fd:
            if _token_in(fd) == self.token:
                if _exists(Connection(), self.token):
                    remove_job(self.token.partition(":")[0])
                os.ftruncate(fd, 0)
        return self._find()

    def left(self) -> None:
        """After this rank has left: the last one empties the file, and removes one that is ours."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # it may be gone, and then so may the server
            with _locked(self._file) as fd:
                if _token_in(fd) == self.token and not _exists(Connection(), self.token):
                    self._clear(fd)

    def give_up(self) -> None:
        """After this rank failed to open the job: removes one that this process created, unless others use it."""
        if not self._is_created:
            return
        with contextlib.suppress(OSError):
            name = self.token.partition(":")[0]
            if self._file is None:
                _remove_unused(name)
                return
            with _locked(self._file) as fd:
                if _token_in(fd) == self.token and _remove_unused(name):
                    self._clear(fd)

    def _clear(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        if self._is_ours:
            self._file.unlink()


def _remove_unused(name: str) -> bool:
    """Removes a job that has no ranks and has taken no step; False: it has, or there is none."""
    found = [job for job in jobs() if job.name == name]
    if not found or found[0].n_present or found[0].step:
        return False
    remove_job(name)
    return True


def find_job(mesh: Mesh, given: str | None) -> Job:
    """
    The job of the ranks of this node: by its name `given`, $WEIGHTD_JOB, $WEIGHTD_JOB_FILE, or the launcher of this
    process. Created unless it is there. Of several nodes each has one, also where they have one server: "NAME-node1" is
    that of node 1. Error; ValueError: a file that others may read.
    """
    environment = os.environ
    if given is None and environment.get("WEIGHTD_JOB"):
        return Job(environment["WEIGHTD_JOB"].strip())
    connection, n_ranks = Connection(), mesh.local_size
    node = f"-node{mesh.node}" if mesh.n_nodes > 1 else ""
    if given is not None:
        if node:
            _refuse_other_node(given, mesh.node)
        given += node
        file = _folder() / f"job-{urllib.parse.quote(given, safe='')}-{_digest(connection.socket())}"
        return _from_file(connection, file, given, n_ranks, "named")
    if environment.get("WEIGHTD_JOB_FILE"):
        file = pathlib.Path(environment["WEIGHTD_JOB_FILE"]).absolute()
        return _from_file(connection, file, f"train-{_digest(connection.socket(), str(file))}", n_ranks, "named", False)
    if mesh.size == 1 and launched_by() is None:
        return Job(_create(connection, f"train-{_digest(os.urandom(16).hex())}", n_ranks, "alone"), is_created=True)
    _sweep(connection)
    try:
        launcher = _launcher()
    except OSError as e:
        raise Error(e.errno, f"the launcher of this process cannot be found, as /proc cannot be read ({e}); mount /proc (mount -t "
                    "proc proc /proc), or set WEIGHTD_JOB_FILE to the path of a file, the same for all ranks") from e
    key = _digest(connection.socket(), *launcher, str(next(_ordinals)) + node)
    return _from_file(connection, _folder() / f"{_run_prefix(connection)}{key}", f"train-{key}", n_ranks, "launched")


def _refuse_other_node(given: str, node: int) -> None:
    """
    A machine that is started as another node than before would begin at step 0 without a word, with a job of another
    name, and so would all others. Error: this server has the job of another node, in the middle of a training, and not
    that of this one. Not where a process is a rank of it now: the servers of both nodes are one, and the ranks that
    meet find out themselves what was lost.
    """
    ours = {job.name: job for job in jobs() if job.uid == os.geteuid()}
    if f"{given}-node{node}" in ours:
        return
    for other in ours.values():
        found = re.fullmatch(rf"{re.escape(given)}-node(\d+)", other.name)
        if found and other.step and not other.n_present:
            raise error(errno.EEXIST, f"this machine has job '{other.name}' at step {other.step}, and is started as "
                        f"node {node}, which would begin at step 0; start it as node {found[1]} (--node-rank, --node), "
                        "or give the new training another name (shard(job=)); "
                        f"`weightctl rm --job {other.name}` ends the old one")


def create_window_job(n_ranks: int) -> str:
    """The token of a new job that no file has. It ends soon after its ranks do, as a window is not resumed."""
    return _create(Connection(), f"flat-{_digest(os.urandom(16).hex())}", n_ranks, "window")


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


# --- Files ---------------------------------------------------------------------------------------


def _run_prefix(connection: Connection) -> str:
    """The start of the names of files of launched jobs, with the server that has them."""
    return f"run-{_digest(connection.socket())}-"


def _sweep(connection: Connection) -> None:
    """Removes the files of launched jobs that are gone. Their programs failed, and have no next start."""
    for file in _folder().glob(f"{_run_prefix(connection)}*"):
        with contextlib.suppress(OSError, ValueError), _locked(file, lock=fcntl.LOCK_EX | fcntl.LOCK_NB) as fd:
            token = _token_in(fd)
            if token is None or not _exists(connection, token):
                file.unlink()


def _from_file(connection: Connection, file: pathlib.Path, name: str, n_ranks: int, kind: str,
               is_ours: bool = True) -> Job:
    with _locked(file, os.O_CREAT) as fd:
        token = _token_in(fd)
        if token is not None and not _exists(connection, token):
            if kind == "named":
                warnings.warn(f"job '{token.partition(':')[0]}' of {file} is gone: removed, or lost with its server; a "
                              "new one begins at step 0", RuntimeWarning, stacklevel=2)
            token = None
        is_created = token is None
        if token is None:
            token = _create_for(fd, file, lambda: _create(connection, name, n_ranks, kind), name)
    return Job(token, file, is_ours, is_created, lambda: _from_file(connection, file, name, n_ranks, kind, is_ours))


def _create_for(fd: int, file: pathlib.Path, create: Callable[[], str], name: str) -> str:
    """
    The token of a new job, which the file then has. A process that is killed between the two leaves the mark: the job
    that has the name then is its own, and no rank has ever found it.
    """
    was_killed = os.pread(fd, len(_MARK) + 1, 0) == _MARK
    if was_killed:
        _remove_unused(name)
    os.ftruncate(fd, 0)
    os.pwrite(fd, _MARK, 0)
    try:
        token = create()
    except Error as e:
        os.ftruncate(fd, 0)
        if e.errno != errno.EEXIST:
            raise
        raise error(errno.EEXIST, f"job '{name}' exists, and {file} has not its token; `weightctl rm {name}` "
                    "removes it, or WEIGHTD_JOB_FILE names the file with the token") from e
    os.pwrite(fd, f"{token}\n".encode(), 0)
    return token


@contextlib.contextmanager
def _locked(file: pathlib.Path, flags: int = 0, lock: int = fcntl.LOCK_EX) -> Iterator[int]:
    """A descriptor of the file, which no other process has locked, and which has not been removed meanwhile."""
    while True:
        fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
        try:
            _refuse_others(file, os.fstat(fd), stat.S_ISREG)
            fcntl.flock(fd, lock)
            if _is_at(fd, file):
                yield fd
                return
        finally:
            os.close(fd)


def _is_at(fd: int, file: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(file))
    except FileNotFoundError:
        return False


def _token_in(fd: int) -> str | None:
    """The token; None for an empty file, or one whose writer was killed half way."""
    content = os.pread(fd, 4096, 0).decode(errors="replace")
    return content.strip() if content.endswith("\n") and content.strip() else None


def _folder() -> pathlib.Path:
    """A folder of this user's own, which lasts as long as the login or the machine."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid():
        folder = pathlib.Path(runtime) / "weightd-train"
    else:
        folder = pathlib.Path(os.environ.get("TMPDIR") or "/tmp") / f"weightd-train-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _refuse_others(folder, os.lstat(folder), stat.S_ISDIR)
    return folder


def _refuse_others(path: pathlib.Path, status: os.stat_result, is_kind) -> None:
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        wanted = "0700" if is_kind is stat.S_ISDIR else "0600"
        raise ValueError(f"{path} holds the token of a job, and must belong to this user with mode {wanted}; it has "
                         f"mode {stat.S_IMODE(status.st_mode):04o} and uid {status.st_uid}")


# --- Launchers -----------------------------------------------------------------------------------


def _launcher() -> tuple[str, ...]:
    """
    Names that the ranks of one start have in common, also after a restart of some or all by their launcher, and other
    starts have not: the process of the launcher, which is the nearest ancestor without this rank's variable, and the
    run as it calls it. torchrun restarts its ranks with another MASTER_PORT.
    """
    variable, pid = launched_by(), os.getppid()
    while pid > 1 and variable is not None and variable in _environment(pid):
        pid = int(_stat(pid)[1])
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    born = _stat(pid)[19] if pid > 0 else ""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    names = [run] if run is not None else [os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")]
    return (boot, os.readlink("/proc/self/ns/pid"), str(pid), born, *names)


def _environment(pid: int) -> set[str]:
    """The names of the variables that a process was started with; none of a process that we may not look at."""
    try:
        content = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in content.split(b"\0")}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, and so on; the time of its birth is at 19."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- Requests ------------------------------------------------------------------------------------


def _create(connection: Connection, name: str, n_ranks: int, kind: str) -> str:
    token = ctypes.create_string_buffer(TOKEN_MAX)
    options = JobOptions(n_ranks=n_ranks, linger_ms=_LINGER_MS[kind])
    connection.call(lib.weightd_job_create, connection.handle, text(name), byref(options), token)
    return token.value.decode()


def _exists(connection: Connection, token: str) -> bool:
    description, size = c_void_p(), c_uint64()
    try:
        connection.call(lib.weightd_job_description, connection.handle, text(token), byref(description),
                        byref(size))
    except Error as e:
        if e.errno == errno.ENOENT:
            return False
        if e.errno == errno.ENODATA:
            return True
        raise
    free(description)
    return True
