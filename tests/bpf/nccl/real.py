"""Plays what NCCL's core does with a plug-in of its profiler, by the functions of a real libnccl.so.2, without a GPU.

real.py LIBRARY OFFSETS, which are JSON: {"symbols": {name: address}, "ncclComm": {"size": n, member: offset}, ...}.
It makes a communicator, a plan and operations of a proxy out of zeros, and of those members alone that the core reads to
report them; real bytes go over a real socket.
"""
import ctypes
import json
import os
import socket
import struct
import sys

RANKS, RANK, PEER, STEPS, SIZE = 2, 0, 1, 4, 10_000
ALL_REDUCE, FLOAT32 = 4, 7  # from NCCL's enumerations; its algorithm 0 is TREE, and its protocol 0 LL
RECV_FLUSH_WAIT, START, STOP = 11, 0, 1
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long


class Thing:
    """A struct of NCCL's."""

    def __init__(self, name):
        self.of = OFFSETS[name]
        self.memory = ctypes.create_string_buffer(self.of["size"])
        self.address = ctypes.addressof(self.memory)

    def put(self, member, value, format="Q"):
        struct.pack_into(format, self.memory, self.of[member], value)

    def get(self, member):
        return struct.unpack_from("Q", self.memory, self.of[member])[0]


def function(name, *types):
    return ctypes.CFUNCTYPE(INT, *types)(BASE + OFFSETS["symbols"][name])


def carry(a, b, size):
    a.sendall(bytes(size))
    while size:
        size -= len(b.recv(size))


def main():
    comm, plan, task, args = (Thing(name) for name in ("ncclComm", "ncclKernelPlan", "ncclTaskColl", "ncclProxyArgs"))
    name = ctypes.create_string_buffer(b"real")
    comm.put("config.commName", ctypes.addressof(name))
    comm.put("commHash", 0xabcdef)
    for member, value in ("nNodes", 2), ("nRanks", RANKS), ("rank", RANK):
        comm.put(member, value, "i")
    function("ncclProfilerPluginInit(ncclComm*)", POINTER)(comm.address)
    mask = INT.from_address(BASE + OFFSETS["symbols"]["ncclProfilerEventMask"]).value

    plan.put("comm", comm.address)
    plan.put("collTaskQueue.head", task.address)
    for member, value in ("func", ALL_REDUCE), ("datatype", FLOAT32), ("eActivationMask", mask):
        task.put(member, value, "i")
    task.put("count", 1000)
    for what in "StartGroupEvent", "StartTaskEvents":
        function(f"ncclProfiler{what}(ncclKernelPlan*)", POINTER)(plan.address)
    event = task.get("eventHandle")
    for what in "StopTaskEvents", "StopGroupEvent":
        function(f"ncclProfiler{what}(ncclKernelPlan*)", POINTER)(plan.address)

    args.put("sliceSteps", 1, "i")
    sub = OFFSETS["ncclProxySubArgs"]
    for member, value in ("eActivationMask", mask), ("rank", RANK), ("pid", os.getpid()), ("peer", PEER), ("nsteps", STEPS):
        struct.pack_into("i", args.memory, sub[member], value)
    struct.pack_into("Q", args.memory, sub["profilerContext"], comm.get("profilerContext"))
    struct.pack_into("Q", args.memory, sub["taskEventHandle"], event)
    function("ncclProfilerStartProxyOpEvent(int, ncclProxyArgs*)", INT, POINTER)(0, args.address)
    callback = function("ncclProfilerCallback(void**, int, void*, long, void*)", POINTER, INT, POINTER, LONG, POINTER)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a, server.accept()[0] as b:
        for step in range(STEPS):
            function("ncclProfilerStartRecvProxyStepEvent(int, ncclProxyArgs*, int)", INT, POINTER, INT)(0, args.address, step)
            data = ctypes.create_string_buffer(struct.pack("<B7xiiQ", 1, b.fileno(), 1, SIZE))  # net_socket_v1.h
            handle = POINTER()
            callback(ctypes.byref(handle), START, args.address + sub["pHandles"] + 16 * step, 2 << 16 | 1, data)
            carry(a, b, SIZE)
            callback(ctypes.byref(handle), STOP, None, 0, None)
            struct.pack_into("Q", args.memory, sub["transSize"], SIZE)
            function("ncclProfilerRecordProxyStepEventState(int, ncclProxyArgs*, int, ncclProfilerEventState_t)", INT, POINTER, INT,
                     INT)(0, args.address, step, RECV_FLUSH_WAIT)
            function("ncclProfilerStopProxyStepEvent(int, ncclProxyArgs*, int)", INT, POINTER, INT)(0, args.address, step)
        function("ncclProfilerStopProxyOpEvent(int, ncclProxyArgs*)", INT, POINTER)(0, args.address)
        print("played", flush=True)
        sys.stdin.readline()
    function("ncclProfilerPluginFinalize(ncclComm*)", POINTER)(comm.address)
    left = [line.split()[-1] for line in open("/proc/self/maps") if "libnccl-profiler" in line]
    print(json.dumps({"left": left, "threads": len(os.listdir("/proc/self/task"))}), flush=True)


LIBRARY = ctypes.CDLL(sys.argv[1])
OFFSETS = json.loads(sys.argv[2])
BASE = ctypes.cast(LIBRARY.ncclGetVersion, POINTER).value - OFFSETS["symbols"]["ncclGetVersion"]
main()
