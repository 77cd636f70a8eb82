"""
One rank of a window: window_program.py TOKEN RANK SIZE DEADLINE_MS. Writes a line once it is about to open the window, and opens it
when it reads one. Then reads requests from stdin, one JSON list a line. Answers the opening and each request: the return value,
the sentence, and the time of the return (CLOCK_MONOTONIC).

["fill", OFFSET, HEX]    into the own range
["read", OFFSET, SIZE]   of the own range; answers HEX
["call", NAME, ARGS...]  weightd_window_NAME() with numbers; the last one of all_gather is NULL
["free"]
"""
import ctypes
import json
import os
import pathlib
import sys
import time
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../.."))

from lib import features  # noqa: E402, found by the path above
from lib.native import Client  # noqa: E402

# A sanitized library cannot be loaded into a plain interpreter.
lib = ctypes.CDLL(str(pathlib.Path(features.LIBRARY).with_name("libweightd-train.so")))


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("token", c_char_p), ("rank", c_uint32), ("rank_from_env", c_bool), ("deadline_ms", c_int),
                ("on_death", c_int)]


lib.weightd_train_error.restype = c_char_p
lib.weightd_window_open.argtypes = [c_void_p, POINTER(Options), c_uint64, POINTER(c_void_p)]
lib.weightd_window_free.argtypes = [c_void_p]
lib.weightd_window_data.argtypes, lib.weightd_window_data.restype = [c_void_p, c_uint32], c_void_p
lib.weightd_window_barrier.argtypes = [c_void_p]
lib.weightd_window_all_reduce.argtypes = lib.weightd_window_reduce_scatter.argtypes = [c_void_p, c_uint64, c_uint64, c_int]
lib.weightd_window_all_gather.argtypes = [c_void_p, c_uint64, c_uint64, c_int, c_void_p]
lib.weightd_window_broadcast.argtypes = [c_void_p, c_uint64, c_uint64, c_uint32]


def answer(r, **more):
    print(json.dumps({"r": r, "sentence": lib.weightd_train_error().decode(), "at": time.monotonic(), **more}), flush=True)


def main(token, rank, size, deadline_ms):
    window, options = c_void_p(), Options(ctypes.sizeof(Options), token.encode(), int(rank), False, int(deadline_ms), 0)
    with Client(os.environ["WEIGHTD_SOCKET"]) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        answer(lib.weightd_window_open(client.w, byref(options), int(size), byref(window)))
        if not window:
            return
        own = lib.weightd_window_data(window, int(rank))
        for line in sys.stdin:
            verb, *args = json.loads(line)
            if verb == "fill":
                ctypes.memmove(own + args[0], bytes.fromhex(args[1]), len(args[1]) // 2)
                answer(0)
            elif verb == "read":
                answer(0, hex=ctypes.string_at(own + args[0], args[1]).hex())
            elif verb == "call":
                answer(getattr(lib, f"weightd_window_{args[0]}")(window, *args[1:]))
            elif verb == "free":
                lib.weightd_window_free(window)
                answer(0)
                return


main(*sys.argv[1:])
