"""
weightd: share model weights between the processes of one machine, without copies.

    with weightd.attach("llama-8b") as weights:     # one request, however many tensors
        w = weights["lm_head.weight"].numpy()       # a view of memory that all readers share

    layout = weightd.Layout()
    layout.add("w", "F32", (1024, 1024))
    with weightd.create("mine", layout) as writer:
        writer["w"].numpy()[:] = 1
        version = writer.publish()                  # immutable from now on

On GPUs: device="cuda:0", as this process counts. Modules of torch: weightd.torch. Neither numpy nor torch is
needed until a tensor is asked for one.

Threads. Everything here may be called from any thread. Calls that are answered at once share one
connection per process and socket; those that take long (create, load, wait, watch) have one each. After
fork() the child reads what the parent had attached, and connects by itself for everything else. When
weightd went away, the next call connects anew, to the same socket; a server that survives is waited for,
see set_restart_timeout().

Processes. A pickled Buffer or Tensor is attached again where it is unpickled; other handles are refused in words.

Lifetime. Tensors, arrays and capsules keep the memory mapped, in whatever order things are closed.
"""
from ._abi import lib as _lib
from ._buffer import Buffer, attach, reap, wait
from ._connection import set_restart_timeout
from ._errors import (AttributeMismatch, Damage, Denied, DigestMismatch, Disconnected, Error, LayoutMismatch, NotFound,
                      NotPublished, Removed, Restarted, Timeout, Torn, Updating)
from ._files import Files, files
from ._job import JobInfo, create_job, jobs, remove_job
from ._layout import Layout
from ._manage import (BufferInfo, DeviceInfo, ServerInfo, VersionInfo, devices, drop, history, ls,
                      ping, rollback, set_access, versions)
from ._memory import Location
from ._model_dir import ModelDir, model_dir
from ._save import CopyResult, Difference, SaveResult, copy, diff, save
from ._stat import CostInfo, Health, HolderInfo, Latency, SlotInfo, Stat, UserInfo, costs, health, holders, slots, stat, users
from ._tensor import Entry, Tensor
from ._watch import Event, Watch, watch
from ._writer import LoadResult, Writer, create, load

__version__ = _lib.weightd_release().decode()
__library__ = _lib.weightd_library().decode(errors="surrogateescape")  # its file

__all__ = [
    "AttributeMismatch", "Buffer", "BufferInfo", "CopyResult", "CostInfo", "Damage", "Denied", "DeviceInfo", "Difference",
    "DigestMismatch", "Disconnected", "Entry", "Error", "Event", "Files", "Health", "HolderInfo", "JobInfo", "Latency", "Layout",
    "LayoutMismatch", "LoadResult", "Location", "ModelDir", "NotFound", "NotPublished", "Removed", "Restarted", "SaveResult",
    "ServerInfo", "SlotInfo", "Stat", "Tensor", "Timeout", "Torn", "Updating", "UserInfo", "VersionInfo", "Watch",
    "Writer", "attach", "copy", "costs", "create", "create_job", "devices", "diff", "drop", "files", "health", "history",
    "holders", "jobs", "load", "ls", "model_dir", "ping", "reap", "remove_job", "rollback", "save", "set_access",
    "set_restart_timeout", "slots", "stat", "users", "versions", "wait", "watch",
]
