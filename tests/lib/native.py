"""
libweightd as C programs see it, through ctypes and without the Python package: for what is asked about the
library itself.

    with Client(daemon.socket) as client:
        buffer = client.attach("m")

A function that fails raises Failed with the errno and the sentence.
"""
import ctypes
import errno
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from lib import features

EMPTY, READY, UPDATING, TORN, GONE = range(5)
HOST, CUDA, CUDA_IPC = range(3)
ALL_STREAMS = c_void_p(-1)
U8, PARAM = 5, 1


class Failed(Exception):
    """errno, as a positive number, and the sentence."""

    def __init__(self, code, sentence):
        super().__init__(code, sentence)
        self.errno, self.sentence = code, sentence

    def __str__(self):
        return f"{errno.errorcode.get(self.errno, self.errno)}: {self.sentence}"


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **kw):
        super().__init__(ctypes.sizeof(type(self)), **kw)


class Server(Sized):
    _fields_ = [("size", c_size_t), ("instance", c_uint64), ("uptime_ns", c_uint64), ("n_buffers", c_uint64),
                ("n_sessions", c_uint64), ("n_leases", c_uint64), ("n_bytes", c_uint64), ("pid", c_uint32),
                ("release", ctypes.c_char * 32)]


class Attached(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("version", c_uint64), ("data", c_void_p),
                ("n_bytes", c_uint64), ("layout_hash", c_void_p), ("digest", c_void_p), ("memory", c_int), ("n_tensors", c_uint32),
                ("data_offset", c_uint64), ("is_mutable", c_bool), ("has_owner", c_bool), ("owner", c_uint32)]


class AttachOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("version", c_uint64), ("layout_hash", c_char_p),
                ("timeout_ms", c_int), ("map_device", c_char_p), ("ret_fd", POINTER(c_int)), ("require", POINTER(c_char_p)),
                ("n_require", c_size_t), ("owner", POINTER(c_uint32)), ("connect", c_bool), ("socket", c_char_p),
                ("ret_attached", POINTER(Attached))]


class CreateOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("mode", c_uint32), ("keep", c_uint32),
                ("new_layout", c_bool), ("exclusive", c_bool), ("reusable", c_bool), ("replace", c_bool),
                ("pause_timeout_ms", c_int), ("policy", c_int), ("handle", c_int), ("header", c_void_p), ("header_size", c_uint64),
                ("owner", POINTER(c_uint32))]


class Location(Sized):
    _fields_ = [("size", c_size_t), ("memory", c_int), ("device", c_int), ("uuid", ctypes.c_uint8 * 16),
                ("map_size", c_uint64), ("data_offset", c_uint64)]


PROGRESS = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_uint64)


class LoadOptions(Sized):
    _fields_ = [("size", c_size_t), ("create", POINTER(CreateOptions)), ("n_threads", ctypes.c_uint),
                ("progress", PROGRESS), ("userdata", c_void_p), ("note", c_void_p)]


class Stat(Sized):
    _fields_ = [("size", c_size_t), *((name, c_uint64) for name in (
        "headroom", "slot_bytes", "kept_bytes", "leaving_bytes", "orphan_bytes", "layout_bytes", "n_quarantined",
        "store_used", "store_max"))]


class JobOptions(Sized):
    _fields_ = [("size", c_size_t), ("n_ranks", c_uint32), ("linger_ms", c_int64)]


class Part(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_char_p), ("n_bytes", c_uint64)]


class JoinOptions(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("n_parts", c_uint32), ("parts", POINTER(Part)),
                ("description", c_char_p), ("description_size", c_uint64)]


class JobInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), *((name, c_uint64) for name in ("n_bytes", "step", "created_ns", "vacant_ns")),
                ("linger_ms", c_int64), *((name, c_uint32) for name in ("uid", "gid", "n_ranks", "n_present", "n_done"))]


class Event(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("name", c_char_p), ("device", c_char_p),
                ("serial", c_uint64), ("time_ns", c_uint64), ("version", c_uint64), ("end", c_int),
                ("uid", c_uint32), ("pid", c_uint32)]


lib = ctypes.CDLL(str(features.LIBRARY))
free = ctypes.CDLL(None).free
free.argtypes = c_void_p,
HANDLE, HANDLES = c_void_p, POINTER(c_void_p)
TARGET = (HANDLE, c_char_p, c_char_p)
SIGNATURES = {
    "new": (c_int, HANDLES), "connect": (c_int, HANDLE, c_char_p), "close": (None, HANDLE),
    "is_connected": (c_bool, HANDLE), "buffer_attached": (c_int, HANDLE, POINTER(Attached)),
    "error": (c_char_p, HANDLE), "set_restart_timeout": (None, HANDLE, c_int),
    "ping": (c_int, HANDLE, POINTER(Server)), "stat": (c_int, HANDLE, POINTER(Stat)),
    "attach": (c_int, HANDLE, c_char_p, POINTER(AttachOptions), HANDLES), "detach": (None, HANDLE),
    "buffer_version": (c_uint64, HANDLE), "buffer_data": (c_void_p, HANDLE, POINTER(c_uint64)),
    "buffer_owner": (c_int, HANDLE, POINTER(c_uint32)), "buffer_digest": (c_void_p, HANDLE), "buffer_is_mutable": (c_bool, HANDLE),
    "buffer_state": (c_int, HANDLE, POINTER(c_uint64)), "buffer_verify": (c_int, HANDLE),
    "buffer_refresh": (c_int, HANDLE, HANDLES), "buffer_swap": (c_int, HANDLE),
    "buffer_swap_on": (c_int, HANDLE, c_void_p), "buffer_device": (c_char_p, HANDLE),
    "buffer_location": (c_int, HANDLE, POINTER(Location)), "writer_location": (c_int, HANDLE, POINTER(Location)),
    "buffer_read": (c_int, HANDLE, c_uint64, c_void_p, c_uint64),
    "writer_read": (c_int, HANDLE, c_uint64, c_void_p, c_uint64),
    "writer_write": (c_int, HANDLE, c_uint64, c_void_p, c_uint64),
    "detach_on": (None, HANDLE, c_void_p), "reap": (c_int, HANDLE),
    "buffer_layout_image": (c_void_p, HANDLE, POINTER(c_uint64)), "buffer_layout_hash": (c_void_p, HANDLE),
    "layout_parse": (c_int, c_char_p, c_uint64, HANDLES), "layout_hash": (c_int, HANDLE, c_char_p),
    "layout_image": (c_int, HANDLE, HANDLES, POINTER(c_uint64)),
    "writer_fd": (c_int, HANDLE, POINTER(c_int)), "writer_digest_leaf": (None, HANDLE, c_uint64),
    "buffer_release": (c_int, HANDLE, c_void_p), "buffer_reacquire": (c_int, HANDLE),
    "buffer_wait": (c_int, HANDLE, c_uint64, c_int, POINTER(c_uint64)),
    "buffer_pause": (c_int, HANDLE, c_int), "read_begin": (c_int, HANDLE, POINTER(c_uint64)),
    "read_retry": (c_bool, HANDLE, c_uint64),
    "layout_new": (c_int, c_uint64, HANDLES), "layout_free": (None, HANDLE),
    "layout_add": (c_int, HANDLE, c_char_p, c_int, c_uint32, POINTER(c_uint64), c_int, c_char_p),
    "create": (c_int, HANDLE, c_char_p, HANDLE, POINTER(CreateOptions), HANDLES),
    "writer_data": (c_void_p, HANDLE, POINTER(c_uint64)),
    "writer_publish": (c_int, HANDLE, POINTER(c_uint64)), "writer_abort": (c_int, HANDLE),
    "writer_publish_on": (c_int, HANDLE, c_void_p, POINTER(c_uint64)),
    "writer_free": (None, HANDLE),
    "load": (c_int, HANDLE, c_char_p, POINTER(c_char_p), c_size_t, POINTER(LoadOptions), c_void_p),
    "list": (c_int, HANDLE, c_char_p, HANDLES), "list_free": (None, HANDLE), "list_count": (c_size_t, HANDLE),
    "list_history": (c_int, *TARGET, HANDLES), "list_slots": (c_int, HANDLE, c_char_p, HANDLES),
    "list_users": (c_int, HANDLE, HANDLES),
    "wait": (c_int, *TARGET, c_uint64, c_int, POINTER(c_uint64)), "drop": (c_int, *TARGET, c_uint64),
    "rollback": (c_int, *TARGET, c_uint64, POINTER(c_uint64)),
    "set_access": (c_int, *TARGET, c_int64, c_int64, c_int64),
    "event_name": (c_char_p, c_int), "end_name": (c_char_p, c_int),
    "watch_new": (c_int, HANDLE, HANDLES), "watch_next": (c_int, HANDLE, c_int, POINTER(Event)),
    "watch_free": (None, HANDLE),
    "job_create": (c_int, HANDLE, c_char_p, POINTER(JobOptions), c_char_p),
    "job_join": (c_int, HANDLE, c_char_p, POINTER(JoinOptions), HANDLES),
    "job_description": (c_int, HANDLE, c_char_p, HANDLES, POINTER(c_uint64)),
    "job_name": (c_char_p, HANDLE), "job_n_ranks": (c_uint32, HANDLE), "job_rank": (c_uint32, HANDLE),
    "job_fd": (c_int, HANDLE, c_uint32), "job_holder": (c_int, HANDLE, c_uint32), "job_hold": (c_int, HANDLE, c_uint32),
    "job_release": (None, HANDLE, c_uint32), "job_check": (c_int, HANDLE), "job_leave": (c_int, HANDLE),
    "job_free": (None, HANDLE), "job_remove": (c_int, HANDLE, c_char_p),
    "job_view": (c_int, HANDLE, c_char_p, HANDLES), "job_view_free": (None, HANDLE), "job_view_n_ranks": (c_uint32, HANDLE),
    "job_view_description": (c_void_p, HANDLE, POINTER(c_uint64)),
    "job_view_read": (c_int64, HANDLE, c_void_p, c_uint64, c_uint64), "job_view_holder": (c_int, HANDLE, c_uint32),
    "list_jobs": (c_int, HANDLE, HANDLES), "list_job": (POINTER(JobInfo), HANDLE, c_size_t),
}
for name_, (result_, *arguments_) in SIGNATURES.items():
    function_ = getattr(lib, "weightd_" + name_)
    function_.restype, function_.argtypes = result_, arguments_


class Client:
    """A connection. What is made from it ends with it."""

    def __init__(self, path=None, restart_ms=20_000):
        self.w = c_void_p()
        assert lib.weightd_new(byref(self.w)) == 0
        self.set_restart_timeout(restart_ms)
        if path is not None:
            self.connect(path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        lib.weightd_close(self.w)
        self.w = c_void_p()

    def check(self, r):
        if r < 0:
            raise Failed(-r, lib.weightd_error(self.w).decode())
        return r

    def new(self, function, *arguments):
        """A handle that the function returns through its last argument."""
        handle = c_void_p()
        self.check(function(*arguments, byref(handle)))
        return handle

    def number(self, function, *arguments):
        n = c_uint64()
        self.check(function(*arguments, byref(n)))
        return n.value

    def owner_of(self, buffer):
        uid = c_uint32()
        self.check(lib.weightd_buffer_owner(buffer.handle, byref(uid)))
        return uid.value

    def set_restart_timeout(self, ms):
        lib.weightd_set_restart_timeout(self.w, ms)

    def connect(self, path):
        self.check(lib.weightd_connect(self.w, path.encode()))

    @property
    def is_connected(self):
        return lib.weightd_is_connected(self.w)

    def ping(self):
        server = Server()
        self.check(lib.weightd_ping(self.w, byref(server)))
        return server

    def stat(self):
        stat = Stat()
        self.check(lib.weightd_stat(self.w, byref(stat)))
        return stat

    def attach(self, name, **options):
        handle = self.new(lib.weightd_attach, self.w, name.encode(), byref(AttachOptions(**options)))
        return Buffer(self, handle)

    def create(self, name, size=4096, **options):
        """A writer of a version with one tensor of that many bytes."""
        layout = self.new(lib.weightd_layout_new, c_uint64(0))
        try:
            self.check(lib.weightd_layout_add(layout, b"t", U8, 1, (c_uint64 * 1)(size), PARAM, None))
            return Writer(self, self.new(lib.weightd_create, self.w, name.encode(), layout,
                                         byref(CreateOptions(**options))))
        finally:
            lib.weightd_layout_free(layout)

    def publish(self, name, data, **options):
        with self.create(name, len(data), **options) as writer:
            writer.write(data)
            return writer.publish()

    def load(self, name, path, progress=None, **create):
        options = LoadOptions(create=ctypes.pointer(CreateOptions(**create)), progress=PROGRESS(lambda _, phase, done, total: progress(phase.decode())) if progress else PROGRESS())
        self.check(lib.weightd_load(self.w, name.encode(), (c_char_p * 1)(str(path).encode()), 1, byref(options), None))

    def n_listed(self, function, *arguments):
        handle = self.new(function, self.w, *arguments)
        try:
            return lib.weightd_list_count(handle)
        finally:
            lib.weightd_list_free(handle)

    def list(self, name=None):
        return self.n_listed(lib.weightd_list, name and name.encode())

    def wait(self, name, version=0, timeout_ms=-1, device=None):
        return self.number(lib.weightd_wait, self.w, name.encode(), device and device.encode(), version, timeout_ms)

    def drop(self, name, version=0, device=None):
        self.check(lib.weightd_drop(self.w, name.encode(), device and device.encode(), version))

    def rollback(self, name, version=0):
        return self.number(lib.weightd_rollback, self.w, name.encode(), None, version)

    def set_access(self, name, mode=-1, uid=-1, gid=-1):
        self.check(lib.weightd_set_access(self.w, name.encode(), None, mode, uid, gid))

    def create_job(self, name, n_ranks=1, linger_ms=0):
        """The token."""
        token = ctypes.create_string_buffer(193)
        self.check(lib.weightd_job_create(self.w, name.encode(), byref(JobOptions(n_ranks=n_ranks, linger_ms=linger_ms)), token))
        return token.value.decode()

    def join(self, token, rank=0, parts=(("JOURNAL", 4096),), description=b"description"):
        rows = (Part * len(parts))(*(Part(kind=kind.encode(), n_bytes=size) for kind, size in parts))
        options = JoinOptions(rank=rank, n_parts=len(parts), parts=rows, description=description, description_size=len(description))
        return Job(self, self.new(lib.weightd_job_join, self.w, token.encode(), byref(options)))

    def job_description(self, token):
        handle, size = c_void_p(), c_uint64()
        self.check(lib.weightd_job_description(self.w, token.encode(), byref(handle), byref(size)))
        try:
            return ctypes.string_at(handle, size.value)
        finally:
            free(handle)

    def remove_job(self, name):
        self.check(lib.weightd_job_remove(self.w, name.encode()))

    def view_job(self, name):
        return JobView(self, self.new(lib.weightd_job_view, self.w, name.encode()))

    def jobs(self):
        """By name: their records as dictionaries."""
        handle = self.new(lib.weightd_list_jobs, self.w)
        try:
            rows = [lib.weightd_list_job(handle, i).contents for i in range(lib.weightd_list_count(handle))]
            return {row.name.decode(): {name: getattr(row, name) for name, _ in row._fields_[2:]} for row in rows}
        finally:
            lib.weightd_list_free(handle)

    def reap(self):
        return self.check(lib.weightd_reap(self.w))

    def watch(self):
        return Watch(self, self.new(lib.weightd_watch_new, self.w))


class JobView:
    """A job as a process sees it that is no rank."""

    def __init__(self, client, handle):
        self.client, self.handle = client, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.weightd_job_view_free(self.handle)

    @property
    def n_ranks(self):
        return lib.weightd_job_view_n_ranks(self.handle)

    @property
    def description(self):
        size = c_uint64()
        return ctypes.string_at(lib.weightd_job_view_description(self.handle, byref(size)), size.value)

    def read(self, size, offset=0):
        buffer = ctypes.create_string_buffer(size)
        n = self.client.check(lib.weightd_job_view_read(self.handle, buffer, size, offset))
        return buffer.raw[:n]

    def holder(self, rank):
        return lib.weightd_job_view_holder(self.handle, rank)


class Job:
    """A rank of a job, of the process that made it."""

    def __init__(self, client, handle):
        self.client, self.handle = client, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def free(self):
        lib.weightd_job_free(self.handle)
        self.handle = c_void_p()

    @property
    def name(self):
        return lib.weightd_job_name(self.handle).decode()

    @property
    def rank(self):
        return lib.weightd_job_rank(self.handle)

    @property
    def n_ranks(self):
        return lib.weightd_job_n_ranks(self.handle)

    def fd(self, part=0):
        return lib.weightd_job_fd(self.handle, part)

    def holder(self, rank):
        return lib.weightd_job_holder(self.handle, rank)

    def hold(self, rank):
        self.client.check(lib.weightd_job_hold(self.handle, rank))

    def release(self, rank):
        lib.weightd_job_release(self.handle, rank)

    def check(self):
        return self.client.check(lib.weightd_job_check(self.handle))

    def leave(self):
        self.client.check(lib.weightd_job_leave(self.handle))


class Buffer:
    def __init__(self, client, handle):
        self.client, self.handle = client, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def detach(self):
        lib.weightd_detach(self.handle)
        self.handle = c_void_p()

    def detach_on(self, stream):
        lib.weightd_detach_on(self.handle, stream)
        self.handle = c_void_p()

    @property
    def version(self):
        return lib.weightd_buffer_version(self.handle)

    @property
    def address(self):
        return lib.weightd_buffer_data(self.handle, None)

    @property
    def is_mutable(self):
        return lib.weightd_buffer_is_mutable(self.handle)

    def bytes(self):
        size = c_uint64()
        return ctypes.string_at(lib.weightd_buffer_data(self.handle, byref(size)), size.value)

    @property
    def device(self):
        return lib.weightd_buffer_device(self.handle).decode()

    @property
    def location(self):
        ret = Location()
        self.client.check(lib.weightd_buffer_location(self.handle, byref(ret)))
        return ret.memory, ret.device, bytes(ret.uuid)

    @property
    def map_size(self):
        ret = Location()
        self.client.check(lib.weightd_buffer_location(self.handle, byref(ret)))
        return ret.map_size

    @property
    def data_offset(self):
        ret = Location()
        self.client.check(lib.weightd_buffer_location(self.handle, byref(ret)))
        return ret.data_offset

    def read(self, offset=0, n=None):
        """As bytes() does, wherever they are."""
        size = c_uint64()
        lib.weightd_buffer_data(self.handle, byref(size))
        to = ctypes.create_string_buffer(size.value - offset if n is None else n)
        self.client.check(lib.weightd_buffer_read(self.handle, offset, to, len(to)))
        return to.raw

    def release(self, stream=ALL_STREAMS):
        self.client.check(lib.weightd_buffer_release(self.handle, stream))

    def reacquire(self):
        return self.client.check(lib.weightd_buffer_reacquire(self.handle))

    def state(self):
        version = c_uint64()
        return lib.weightd_buffer_state(self.handle, byref(version)), version.value

    def refresh(self):
        handle = c_void_p()
        r = self.client.check(lib.weightd_buffer_refresh(self.handle, byref(handle)))
        return Buffer(self.client, handle) if r else None

    def swap(self):
        return self.client.check(lib.weightd_buffer_swap(self.handle))

    def swap_on(self, stream):
        return self.client.check(lib.weightd_buffer_swap_on(self.handle, stream))

    def pause(self, timeout_ms=-1):
        return self.client.check(lib.weightd_buffer_pause(self.handle, timeout_ms))

    def verify(self):
        self.client.check(lib.weightd_buffer_verify(self.handle))

    def wait(self, version, timeout_ms=-1):
        return self.client.number(lib.weightd_buffer_wait, self.handle, version, timeout_ms)

    def read_begin(self):
        return self.client.number(lib.weightd_read_begin, self.handle)

    def read_retry(self, ticket):
        return lib.weightd_read_retry(self.handle, ticket)


class Writer:
    def __init__(self, client, handle):
        self.client, self.handle = client, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def free(self):
        lib.weightd_writer_free(self.handle)
        self.handle = c_void_p()

    def write(self, data):
        ctypes.memmove(lib.weightd_writer_data(self.handle, None), data, len(data))

    def bytes(self):
        size = c_uint64()
        return ctypes.string_at(lib.weightd_writer_data(self.handle, byref(size)), size.value)

    @property
    def address(self):
        return lib.weightd_writer_data(self.handle, None)

    @property
    def location(self):
        ret = Location()
        self.client.check(lib.weightd_writer_location(self.handle, byref(ret)))
        return ret.memory, ret.device, bytes(ret.uuid)

    @property
    def map_size(self):
        ret = Location()
        self.client.check(lib.weightd_writer_location(self.handle, byref(ret)))
        return ret.map_size

    @property
    def data_offset(self):
        ret = Location()
        self.client.check(lib.weightd_writer_location(self.handle, byref(ret)))
        return ret.data_offset

    def read(self, offset, n):
        to = ctypes.create_string_buffer(n)
        self.client.check(lib.weightd_writer_read(self.handle, offset, to, n))
        return to.raw

    def put(self, data, offset=0):
        """As write() does, wherever the bytes are."""
        self.client.check(lib.weightd_writer_write(self.handle, offset, data, len(data)))

    def publish_on(self, stream):
        return self.client.number(lib.weightd_writer_publish_on, self.handle, stream)

    def publish(self):
        return self.client.number(lib.weightd_writer_publish, self.handle)

    def fd(self):
        fd = c_int(-1)
        self.client.check(lib.weightd_writer_fd(self.handle, byref(fd)))
        return fd.value

    def digest(self, leaf, data):
        """As weightd_writer_digest_leaf(), by these bytes."""
        lib.weightd_writer_digest_bytes(self.handle, leaf, data)

    def verify(self, first, n):
        self.client.check(lib.weightd_writer_verify(self.handle, first, n))

    def abort(self):
        self.client.check(lib.weightd_writer_abort(self.handle))


class Watch:
    def __init__(self, client, handle):
        self.client, self.handle = client, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.weightd_watch_free(self.handle)

    def next(self, timeout_ms=60_000):
        """(kind, name, version, why it ended)"""
        event = Event()
        self.client.check(lib.weightd_watch_next(self.handle, timeout_ms, byref(event)))
        return (lib.weightd_event_name(event.kind).decode(), event.name.decode(), event.version,
                lib.weightd_end_name(event.end).decode())
