"""
Two ends of our Gloo in a process that has torch's, which works at the same time: torch_gloo.py OBJECT, where a program is linked
with torch; beside() where Python loaded it. Prints "done".
"""
import ctypes
import os
import pathlib
import socket
import struct
import sys
import sysconfig
import tempfile
import threading
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_uint8, c_uint32, c_uint64, c_void_p

if __name__ == "__main__":
    ctypes.CDLL(str(pathlib.Path(sysconfig.get_path("purelib"), "torch/lib/libtorch_cpu.so")), mode=os.RTLD_NOW | os.RTLD_GLOBAL)

import torch  # noqa: E402, after its library
import torch.distributed as dist  # noqa: E402

N, SIZE, ROUNDS = 2, 3 << 20, 4


class Hello(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("bytes", c_uint8 * 16384)]


class Segment(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_uint64)]


class Transfer(ctypes.Structure):
    _fields_ = [("node", c_uint32), ("send", POINTER(Segment)), ("n_send", c_uint32),
                ("receive", POINTER(Segment)), ("n_receive", c_uint32)]


Check = CFUNCTYPE(c_int, c_void_p, c_bool)


class Engine(ctypes.Structure):
    """The beginning of struct engine."""
    _fields_ = [("name", c_char_p),
                ("open", CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32, POINTER(c_void_p), POINTER(Hello), c_char_p)),
                ("connect", CFUNCTYPE(c_int, c_void_p, POINTER(Hello), Check, c_void_p, c_char_p)),
                ("exchange", CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(Transfer), c_uint32, Check, c_void_p, c_char_p))]


never_ends = Check(lambda data, is_interrupted: 0)
address = (c_uint8 * 128)(*struct.pack("<HH4s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1")))


def must(r, node, why):
    if r:
        print(f"node {node}: {r} {why.value.decode()}", flush=True)
        os._exit(1)


def run(gloo, node, state, hellos, received, why):
    sent = torch.full((SIZE,), 10 + node, dtype=torch.uint8)
    send, receive = Segment(sent.data_ptr(), SIZE), Segment(received.data_ptr(), SIZE)
    transfer = Transfer(1 - node, ctypes.pointer(send), 1, ctypes.pointer(receive), 1)

    must(gloo.connect(state, hellos, never_ends, None, why), node, why)
    for number in range(ROUNDS):
        must(gloo.exchange(state, number, byref(transfer), 1, never_ends, None, why), node, why)


def beside(path):
    # As gloo_object.c opens it.
    gloo = Engine.in_dll(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND), "weightd_train_gloo")
    states, hellos, whys = [c_void_p() for _ in range(N)], (Hello * N)(), [ctypes.create_string_buffer(256) for _ in range(N)]
    received = [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(N)]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for i in range(N):
            must(gloo.open(address, i, N, byref(states[i]), byref(hellos[i]), whys[i]), i, whys[i])
        threads = [threading.Thread(target=run, args=(gloo, i, states[i], hellos, received[i], whys[i])) for i in range(N)]
        for thread in threads:
            thread.start()
        dist.all_reduce(torch.ones(SIZE))
        for thread in threads:
            thread.join()
        dist.all_reduce(torch.ones(SIZE))
        dist.destroy_process_group()
    assert all((received[i] == 11 - i).all() for i in range(N))
    print("done", flush=True)


if __name__ == "__main__":
    beside(sys.argv[1])
    os._exit(0)  # connections are open
