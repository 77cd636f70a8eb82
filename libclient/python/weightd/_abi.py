"""libweightd and the declarations of weightd.h, one to one."""
from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int64,
                    c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p)

from ._library import library_path

HASH_SIZE = 16
DEVICE_MAX = 63
TOKEN_MAX = 193
NOT_TIED = 2**32 - 1
HEADER_LEAF = 2**64 - 1
ROLES = {1: "param", 2: "buffer"}
STATES = {0: "empty", 1: "ready", 2: "updating", 3: "torn", 4: "gone"}
SLOT_STATES = {1: "writing", 2: "current", 3: "kept", 4: "leaving", 5: "orphan"}
POLICIES = {"wait": 0, "evict": 1, "kill": 2}
HANDLES = {"vmm": 0, "ipc": 1}
READS = {"auto": 0, "direct": 1, "buffered": 2}
CACHES = {"keep": 0, "drop": 1}
VERIFIES = {"none": 0, "xxh3": 1, "sha256": 2}
MEMORIES = {0: "host", 1: "cuda", 2: "cuda-ipc"}
UNLIMITED = 2**64 - 1

Progress = CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_uint64)
Note = CFUNCTYPE(None, c_void_p, c_char_p)
Hash = c_ubyte * HASH_SIZE


class Sized(Structure):
    """A struct that begins with its size, for the library."""

    def __init__(self, **fields):
        self.size = ctypes.sizeof(self)
        if fields:
            super().__init__(self.size, **fields)


class Tensor(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("unit", c_char_p),
                ("shape", POINTER(c_uint64)), ("data", c_void_p), ("offset", c_uint64),
                ("n_bytes", c_uint64), ("index", c_uint32), ("tied_to", c_uint32),
                ("n_dims", c_uint32), ("dtype", c_int), ("role", c_int)]


_EMPTY = bytes(Tensor())


def tensor_row() -> Tensor:
    """Tensor(), faster: one is made for each tensor that is read."""
    return Tensor.from_buffer_copy(_EMPTY)


class Location(Sized):
    _fields_ = [("size", c_size_t), ("memory", c_int), ("device", c_int), ("uuid", c_ubyte * 16),
                ("map_size", c_uint64), ("data_offset", c_uint64)]


class Server(Sized):
    _fields_ = [("size", c_size_t), ("instance", c_uint64), ("uptime_ns", c_uint64),
                ("n_buffers", c_uint64), ("n_sessions", c_uint64), ("n_leases", c_uint64),
                ("n_bytes", c_uint64), ("pid", c_uint32), ("release", c_char * 32), ("program", c_char * 256)]


class Attached(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("version", c_uint64), ("data", c_void_p),
                ("n_bytes", c_uint64), ("layout_hash", c_void_p), ("digest", c_void_p), ("memory", c_int),
                ("n_tensors", c_uint32), ("data_offset", c_uint64), ("is_mutable", c_bool), ("has_owner", c_bool),
                ("owner", c_uint32)]


class AttachOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("version", c_uint64),
                ("layout_hash", POINTER(c_ubyte)), ("timeout_ms", c_int), ("map_device", c_char_p),
                ("ret_fd", POINTER(c_int)), ("require", POINTER(c_char_p)), ("n_require", c_size_t),
                ("owner", POINTER(c_uint32)), ("connect", c_bool), ("socket", c_char_p),
                ("ret_attached", POINTER(Attached))]


class CreateOptions(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("mode", c_uint32), ("keep", c_uint32),
                ("new_layout", c_bool), ("exclusive", c_bool), ("reusable", c_bool),
                ("replace", c_bool), ("pause_timeout_ms", c_int), ("policy", c_int), ("handle", c_int),
                ("header", c_void_p), ("header_size", c_uint64), ("owner", POINTER(c_uint32)), ("numa", c_char_p)]


class LoadOptions(Sized):
    _fields_ = [("size", c_size_t), ("create", POINTER(CreateOptions)), ("n_threads", c_uint),
                ("progress", Progress), ("userdata", c_void_p), ("note", Note), ("no_files", c_bool),
                ("attributes", POINTER(c_char_p)), ("n_attributes", c_size_t), ("include", POINTER(c_char_p)),
                ("n_include", c_size_t), ("exclude", POINTER(c_char_p)), ("n_exclude", c_size_t),
                ("read", c_int), ("cache", c_int), ("dtype", c_int), ("more_devices", POINTER(c_char_p)),
                ("n_more_devices", c_size_t), ("ret_more_versions", POINTER(c_uint64)),
                ("verify", c_int), ("timeout_ms", c_uint), ("max_rate", c_uint64),
                ("tp_rank", c_uint), ("tp_world", c_uint), ("tp_rules", c_char_p), ("share", c_bool),
                ("tp_more_ranks", POINTER(c_uint)), ("n_tp_more_ranks", c_size_t), ("ret_tp_results", c_void_p)]


class ModelDirOptions(Sized):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("self_fd", c_int), ("owner", POINTER(c_uint32))]


class ModelWeights(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("version", c_uint64), ("path", c_char_p), ("fd", c_int)]


class SafetensorsContents(Sized):
    _fields_ = [("size", c_size_t), ("layout", c_void_p), ("data", POINTER(c_void_p)), ("progress", Progress),
                ("userdata", c_void_p)]


class LoadResult(Sized):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("n_bytes", c_uint64),
                ("n_tensors", c_uint64), ("n_files", c_uint64), ("elapsed_ns", c_uint64),
                ("memory_ns", c_uint64), ("read_ns", c_uint64), ("digest", Hash),
                ("n_direct_bytes", c_uint64), ("ring_error", c_int), ("verified", c_int), ("is_shared", c_bool)]


class PlanFile(Sized):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("n_bytes", c_uint64), ("n_ranges", c_uint64)]


class PlanRange(Sized):
    _fields_ = [("size", c_size_t), ("offset", c_uint64), ("dest", c_uint64), ("n_bytes", c_uint64), ("file", c_uint32)]


class CopyOptions(Sized):
    _fields_ = [("size", c_size_t), ("create", POINTER(CreateOptions)), ("no_files", c_bool), ("progress", Progress),
                ("userdata", c_void_p)]


class CopyResult(Sized):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("n_bytes", c_uint64), ("n_tensors", c_uint64),
                ("elapsed_ns", c_uint64), ("digest", Hash)]


class File(Sized):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("data", c_void_p), ("n_bytes", c_uint64)]


class SaveOptions(Sized):
    _fields_ = [("size", c_size_t), ("shard_size", c_uint64), ("replace", c_bool), ("no_files", c_bool),
                ("progress", Progress), ("userdata", c_void_p)]


class SaveResult(Sized):
    _fields_ = [("size", c_size_t), ("n_bytes", c_uint64), ("n_tensors", c_uint64), ("n_files", c_uint64),
                ("elapsed_ns", c_uint64)]


class Difference(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("first", POINTER(Tensor)), ("second", POINTER(Tensor)),
                ("n_elements", c_uint64), ("n_different", c_uint64), ("n_unmeasured", c_uint64), ("max_abs", c_double)]


class DamageRow(Sized):
    _fields_ = [("size", c_size_t), ("leaf", c_uint64), ("begin", c_uint64), ("end", c_uint64),
                ("n_tensors", c_uint32), ("first_tensor", c_uint32), ("last_tensor", c_uint32)]


class DiffSide(Sized):
    _fields_ = [("size", c_size_t), ("buffer", c_void_p), ("path", c_char_p)]


class DiffResult(Sized):
    _fields_ = [("size", c_size_t), ("n_tensors", c_uint64), ("n_different", c_uint64), ("n_bytes", c_uint64)]


DiffFunction = CFUNCTYPE(c_int, c_void_p, POINTER(Difference))
DamageFunction = CFUNCTYPE(c_int, c_void_p, POINTER(DamageRow))


class BufferInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("state", c_int),
                ("writing", c_bool), ("uid", c_uint32), ("gid", c_uint32), ("mode", c_uint32),
                ("keep", c_uint32), ("n_versions", c_uint32), ("n_readers", c_uint32),
                ("version", c_uint64), ("n_tensors", c_uint64), ("n_bytes", c_uint64),
                ("slot_bytes", c_uint64), ("huge_bytes", c_uint64), ("published_ns", c_uint64),
                ("layout_hash", Hash), ("digest", Hash), ("newest", c_uint64),
                ("exclusive", c_bool), ("reusable", c_bool), ("memory", c_int)]


class VersionInfo(Sized):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("n_tensors", c_uint64),
                ("n_bytes", c_uint64), ("slot_bytes", c_uint64), ("huge_bytes", c_uint64),
                ("published_ns", c_uint64), ("n_readers", c_uint32), ("uid", c_uint32),
                ("current", c_bool), ("layout_hash", Hash), ("digest", Hash), ("pid", c_uint32),
                ("end", c_int), ("ended_ns", c_uint64), ("image", c_bool), ("has_files", c_bool)]


class SlotInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("slot", c_uint64),
                ("version", c_uint64), ("n_bytes", c_uint64), ("allocated", c_uint64),
                ("huge_bytes", c_uint64), ("state", c_int), ("n_readers", c_uint32),
                ("uid", c_uint32), ("removed", c_bool)]


class UserInfo(Sized):
    _fields_ = [("size", c_size_t), ("uid", c_uint32), ("n_connections", c_uint64),
                ("max_connections", c_uint64), ("n_readers", c_uint64), ("max_readers", c_uint64),
                ("n_buffers", c_uint64), ("max_buffers", c_uint64), ("n_versions", c_uint64),
                ("max_versions", c_uint64), ("n_bytes", c_uint64), ("max_bytes", c_uint64),
                ("n_descriptors", c_uint64), ("max_descriptors", c_uint64)]


class HolderInfo(Sized):
    _fields_ = [("size", c_size_t), ("uid", c_uint32), ("n_versions", c_uint32), ("n_bytes", c_uint64),
                ("max_bytes", c_uint64), ("over", c_bool), ("name", c_char_p), ("device", c_char_p),
                ("version", c_uint64), ("pid", c_uint32), ("since_ns", c_uint64)]


class CostInfo(Sized):
    _fields_ = [("size", c_size_t), ("uid", c_uint32), ("n_spans", c_uint32), ("n_requests", c_uint64),
                ("loop_ns", c_uint64), ("worker_ns", c_uint64), ("longest_ns", c_uint64), ("held_bytes", c_uint64),
                ("checking_bytes", c_uint64), ("n_refused", c_uint64), ("span_ns", c_uint64),
                ("answered", POINTER(c_uint64))]


class DeviceInfo(Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("name", c_char_p), ("why", c_char_p),
                ("total", c_uint64), ("free", c_uint64), ("ours", c_uint64), ("granularity", c_uint64),
                ("index", c_uint32), ("driver", c_uint32), ("capability", c_uint32), ("vmm", c_bool),
                ("ipc", c_bool), ("fabric", c_bool), ("rdma", c_bool), ("mig", c_bool)]


class Stat(Sized):
    _fields_ = [("size", c_size_t), ("headroom", c_uint64), ("slot_bytes", c_uint64),
                ("kept_bytes", c_uint64), ("leaving_bytes", c_uint64), ("orphan_bytes", c_uint64),
                ("layout_bytes", c_uint64), ("n_quarantined", c_uint64), ("store_used", c_uint64),
                ("store_max", c_uint64)]


class Latency(ctypes.Structure):
    _fields_ = [("sum_ns", c_uint64), ("counts", c_uint64 * 13)]


class Health(Sized):
    _fields_ = [("size", c_size_t), ("started_ns", c_uint64), ("memory", c_uint64), ("reserve", c_uint64),
                ("headroom", c_uint64), ("limit", c_char * 256), ("max_descriptors", c_uint64),
                ("refused", c_uint64 * 5), ("loop", Latency), ("workers", Latency * 4), ("keeper", c_int),
                ("admin", c_bool)]


class Event(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("name", c_char_p), ("device", c_char_p),
                ("serial", c_uint64), ("time_ns", c_uint64), ("version", c_uint64), ("end", c_int),
                ("uid", c_uint32), ("pid", c_uint32)]


class JobOptions(Sized):
    _fields_ = [("size", c_size_t), ("n_ranks", c_uint32), ("linger_ms", c_int64)]


class Part(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_char_p), ("n_bytes", c_uint64)]


class JoinOptions(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("n_parts", c_uint32), ("parts", POINTER(Part)),
                ("description", c_void_p), ("description_size", c_uint64)]


class JobInfo(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("n_bytes", c_uint64), ("step", c_uint64),
                ("created_ns", c_uint64), ("vacant_ns", c_uint64), ("linger_ms", c_int64), ("uid", c_uint32),
                ("gid", c_uint32), ("n_ranks", c_uint32), ("n_present", c_uint32), ("n_done", c_uint32)]


# Pointers to opaque structs, in and out, are c_void_p.
FUNCTIONS = {  # name: (result, *arguments)
    "weightd_release": (c_char_p,),
    "weightd_library": (c_char_p,),
    "weightd_dtype_name": (c_char_p, c_int),
    "weightd_dtype_parse": (c_int, c_char_p),
    "weightd_dtype_bits": (c_uint, c_int),
    "weightd_dtype_block": (c_int, c_int, POINTER(c_uint32), POINTER(c_uint32)),
    "weightd_new": (c_int, POINTER(c_void_p)),
    "weightd_connect": (c_int, c_void_p, c_char_p),
    "weightd_is_connected": (c_bool, c_void_p),
    "weightd_close": (None, c_void_p),
    "weightd_error": (c_char_p, c_void_p),
    "weightd_set_restart_timeout": (None, c_void_p, c_int),
    "weightd_socket": (c_char_p, c_void_p),
    "weightd_ping": (c_int, c_void_p, POINTER(Server)),
    "weightd_attach": (c_int, c_void_p, c_char_p, POINTER(AttachOptions), POINTER(c_void_p)),
    "weightd_detach": (None, c_void_p),
    "weightd_detach_on": (None, c_void_p, c_void_p),
    "weightd_reap": (c_int, c_void_p),
    "weightd_buffer_attached": (c_int, c_void_p, POINTER(Attached)),
    "weightd_buffer_name": (c_char_p, c_void_p),
    "weightd_buffer_device": (c_char_p, c_void_p),
    "weightd_buffer_version": (c_uint64, c_void_p),
    "weightd_buffer_data": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_buffer_location": (c_int, c_void_p, POINTER(Location)),
    "weightd_buffer_ipc_handle": (c_int, c_void_p, c_char_p),
    "weightd_buffer_read": (c_int, c_void_p, c_uint64, c_void_p, c_uint64),
    "weightd_buffer_layout_hash": (c_void_p, c_void_p),
    "weightd_buffer_layout_image": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_buffer_digest": (c_void_p, c_void_p),
    "weightd_buffer_owner": (c_int, c_void_p, POINTER(c_uint32)),
    "weightd_buffer_n_tensors": (c_uint32, c_void_p),
    "weightd_buffer_tensor": (c_int, c_void_p, c_uint32, POINTER(Tensor)),
    "weightd_buffer_find": (c_int, c_void_p, c_char_p, POINTER(Tensor)),
    "weightd_buffer_latest": (c_int, c_void_p, POINTER(c_uint64)),
    "weightd_buffer_wait": (c_int, c_void_p, c_uint64, c_int, POINTER(c_uint64)),
    "weightd_buffer_refresh": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_buffer_swap": (c_int, c_void_p),
    "weightd_buffer_swap_on": (c_int, c_void_p, c_void_p),
    "weightd_buffer_release": (c_int, c_void_p, c_void_p),
    "weightd_buffer_reacquire": (c_int, c_void_p),
    "weightd_buffer_state": (c_int, c_void_p, POINTER(c_uint64)),
    "weightd_read_begin": (c_int, c_void_p, POINTER(c_uint64)),
    "weightd_read_retry": (c_bool, c_void_p, c_uint64),
    "weightd_buffer_pause": (c_int, c_void_p, c_int),
    "weightd_buffer_is_mutable": (c_bool, c_void_p),
    "weightd_buffer_verify": (c_int, c_void_p),
    "weightd_buffer_verify_each": (c_int, c_void_p, DamageFunction, c_void_p),
    "weightd_guard": (c_int,),
    "weightd_layout_new": (c_int, c_uint64, POINTER(c_void_p)),
    "weightd_layout_free": (None, c_void_p),
    "weightd_layout_image": (c_int, c_void_p, POINTER(c_void_p), POINTER(c_uint64)),
    "weightd_layout_parse": (c_int, c_void_p, c_uint64, POINTER(c_void_p)),
    "weightd_layout_add": (c_int, c_void_p, c_char_p, c_int, c_uint32, POINTER(c_uint64), c_int,
                           c_char_p),
    "weightd_layout_tie": (c_int, c_void_p, c_char_p, c_uint32, c_char_p),
    "weightd_layout_compare": (c_int, c_void_p, c_void_p, c_char_p, c_size_t),
    "weightd_layout_n_tensors": (c_uint32, c_void_p),
    "weightd_layout_n_bytes": (c_uint64, c_void_p),
    "weightd_layout_tensor": (c_int, c_void_p, c_uint32, POINTER(Tensor)),
    "weightd_layout_hash": (c_int, c_void_p, POINTER(c_ubyte)),
    "weightd_create": (c_int, c_void_p, c_char_p, c_void_p, POINTER(CreateOptions),
                       POINTER(c_void_p)),
    "weightd_writer_data": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_writer_n_tensors": (c_uint32, c_void_p),
    "weightd_writer_tensor": (c_int, c_void_p, c_uint32, POINTER(Tensor)),
    "weightd_writer_find": (c_int, c_void_p, c_char_p, POINTER(Tensor)),
    "weightd_writer_location": (c_int, c_void_p, POINTER(Location)),
    "weightd_writer_read": (c_int, c_void_p, c_uint64, c_void_p, c_uint64),
    "weightd_writer_write": (c_int, c_void_p, c_uint64, c_void_p, c_uint64),
    "weightd_writer_fd": (c_int, c_void_p, POINTER(c_int)),
    "weightd_writer_digest_leaf": (None, c_void_p, c_uint64),
    "weightd_writer_digest_bytes": (None, c_void_p, c_uint64, c_void_p),
    "weightd_writer_verify": (c_int, c_void_p, c_uint64, c_uint64),
    "weightd_writer_publish": (c_int, c_void_p, POINTER(c_uint64)),
    "weightd_writer_publish_on": (c_int, c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_writer_abort": (c_int, c_void_p),
    "weightd_writer_free": (None, c_void_p),
    "weightd_files_new": (c_int, POINTER(c_void_p)),
    "weightd_files_free": (None, c_void_p),
    "weightd_files_add": (c_int, c_void_p, c_char_p, c_void_p, c_uint64),
    "weightd_files_set_attribute": (c_int, c_void_p, c_char_p, c_char_p),
    "weightd_files_error": (c_char_p, c_void_p),
    "weightd_files_count": (c_size_t, c_void_p),
    "weightd_files_file": (c_int, c_void_p, c_size_t, POINTER(File)),
    "weightd_files_find": (c_int, c_void_p, c_char_p, POINTER(File)),
    "weightd_files_n_attributes": (c_size_t, c_void_p),
    "weightd_files_attribute": (c_int, c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_char_p)),
    "weightd_files_value": (c_char_p, c_void_p, c_char_p),
    "weightd_files_image": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_files_parse": (c_int, c_void_p, c_uint64, POINTER(c_void_p)),
    "weightd_files_get": (c_int, c_void_p, c_char_p, c_char_p, c_uint64, POINTER(c_void_p)),
    "weightd_writer_set_files": (c_int, c_void_p, c_void_p),
    "weightd_writer_get_files": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_load": (c_int, c_void_p, c_char_p, POINTER(c_char_p), c_size_t, POINTER(LoadOptions),
                     POINTER(LoadResult)),
    "weightd_load_needed": (c_int, c_void_p, c_char_p, c_char_p, POINTER(LoadOptions), POINTER(c_uint64)),
    "weightd_load_plan_new": (c_int, c_void_p, POINTER(c_char_p), c_size_t, POINTER(LoadOptions), POINTER(c_void_p)),
    "weightd_load_plan_free": (None, c_void_p),
    "weightd_load_plan_form": (c_int, c_void_p),
    "weightd_load_plan_layout": (c_void_p, c_void_p),
    "weightd_load_plan_file": (c_int, c_void_p, c_uint64, POINTER(PlanFile)),
    "weightd_load_plan_range": (c_int, c_void_p, c_uint64, POINTER(PlanRange)),
    "weightd_copy": (c_int, c_void_p, c_char_p, POINTER(CopyOptions), POINTER(CopyResult)),
    "weightd_save": (c_int, c_void_p, c_char_p, POINTER(SaveOptions), POINTER(SaveResult)),
    "weightd_safetensors_write": (c_int, c_void_p, c_char_p, c_char_p, POINTER(SafetensorsContents)),
    "weightd_safetensors_open": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "weightd_safetensors_close": (None, c_void_p),
    "weightd_safetensors_find": (c_int, c_void_p, c_char_p, POINTER(Tensor)),
    "weightd_safetensors_read": (c_int, c_void_p, c_uint64, c_void_p, c_uint64),
    "weightd_diff_name": (c_char_p, c_int),
    "weightd_verify_name": (c_char_p, c_int),
    "weightd_diff": (c_int, c_void_p, POINTER(DiffSide), POINTER(DiffSide), DiffFunction, c_void_p,
                     POINTER(DiffResult)),
    "weightd_model_dir_new": (c_int, c_void_p, POINTER(c_char_p), c_size_t, POINTER(ModelDirOptions),
                              POINTER(c_void_p)),
    "weightd_model_dir_path": (c_char_p, c_void_p),
    "weightd_model_dir_weights": (c_int, c_void_p, c_size_t, POINTER(ModelWeights)),
    "weightd_model_dir_free": (None, c_void_p),
    "weightd_device_name": (c_int, c_void_p, c_char_p, c_char_p),
    "weightd_end_name": (c_char_p, c_int),
    "weightd_list": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "weightd_list_versions": (c_int, c_void_p, c_char_p, c_char_p, POINTER(c_void_p)),
    "weightd_list_history": (c_int, c_void_p, c_char_p, c_char_p, POINTER(c_void_p)),
    "weightd_list_slots": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "weightd_list_users": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_list_holders": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_list_costs": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_list_devices": (c_int, c_void_p, c_bool, POINTER(c_void_p)),
    "weightd_list_free": (None, c_void_p),
    "weightd_list_count": (c_size_t, c_void_p),
    "weightd_list_buffer": (POINTER(BufferInfo), c_void_p, c_size_t),
    "weightd_list_version": (POINTER(VersionInfo), c_void_p, c_size_t),
    "weightd_list_slot": (POINTER(SlotInfo), c_void_p, c_size_t),
    "weightd_list_user": (POINTER(UserInfo), c_void_p, c_size_t),
    "weightd_list_holder": (POINTER(HolderInfo), c_void_p, c_size_t),
    "weightd_list_cost": (POINTER(CostInfo), c_void_p, c_size_t),
    "weightd_list_device": (POINTER(DeviceInfo), c_void_p, c_size_t),
    "weightd_stat": (c_int, c_void_p, POINTER(Stat)),
    "weightd_health": (c_int, c_void_p, POINTER(Health)),
    "weightd_wait": (c_int, c_void_p, c_char_p, c_char_p, c_uint64, c_int, POINTER(c_uint64)),
    "weightd_drop": (c_int, c_void_p, c_char_p, c_char_p, c_uint64),
    "weightd_rollback": (c_int, c_void_p, c_char_p, c_char_p, c_uint64, POINTER(c_uint64)),
    "weightd_set_access": (c_int, c_void_p, c_char_p, c_char_p, c_int64, c_int64, c_int64),
    "weightd_event_name": (c_char_p, c_int),
    "weightd_watch_new": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_watch_next": (c_int, c_void_p, c_int, POINTER(Event)),
    "weightd_watch_free": (None, c_void_p),
    "weightd_job_create": (c_int, c_void_p, c_char_p, POINTER(JobOptions), c_char_p),
    "weightd_job_join": (c_int, c_void_p, c_char_p, POINTER(JoinOptions), POINTER(c_void_p)),
    "weightd_job_description": (c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_uint64)),
    "weightd_job_name": (c_char_p, c_void_p),
    "weightd_job_n_ranks": (c_uint32, c_void_p),
    "weightd_job_rank": (c_uint32, c_void_p),
    "weightd_job_fd": (c_int, c_void_p, c_uint32),
    "weightd_job_holder": (c_int, c_void_p, c_uint32),
    "weightd_job_hold": (c_int, c_void_p, c_uint32),
    "weightd_job_release": (None, c_void_p, c_uint32),
    "weightd_job_check": (c_int, c_void_p),
    "weightd_job_leave": (c_int, c_void_p),
    "weightd_job_free": (None, c_void_p),
    "weightd_job_remove": (c_int, c_void_p, c_char_p),
    "weightd_job_view": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "weightd_job_view_free": (None, c_void_p),
    "weightd_job_view_n_ranks": (c_uint32, c_void_p),
    "weightd_job_view_description": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_job_view_read": (c_int64, c_void_p, c_void_p, c_uint64, c_uint64),
    "weightd_job_view_holder": (c_int, c_void_p, c_uint32),
    "weightd_list_jobs": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_list_job": (POINTER(JobInfo), c_void_p, c_size_t),
}


def _load() -> ctypes.CDLL:
    path = library_path("libweightd.so.0")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"weightd needs libweightd: {e}; install it, or set WEIGHTD_LIBRARY") from e
    for name, (result, *arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as e:
            raise ImportError(f"{path} is no libweightd of the release of this package, {os.path.dirname(__file__)}: {e}; install "
                              "both from one release, or set WEIGHTD_LIBRARY") from e
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def text(value: str) -> bytes:
    """UTF-8 for C. ValueError: a NUL, at which C would cut it off, or a lone surrogate."""
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"{value!r} holds a NUL")
    return encoded


def path_bytes(path: str | os.PathLike) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"{path!r} holds a NUL")
    return encoded


def hash_at(address: int | None) -> bytes | None:
    """The 16 bytes there; None for NULL."""
    return ctypes.string_at(address, HASH_SIZE) if address else None
