"""
A process with memory of its own on the GPU, as weightd-cuda has it: memory.py FD SIZE SEED GPU

It sends the memory's descriptor over a socket, with a line about it, and then a digest of the memory for each message that it gets.
The memory has the content of this seed, or is zero for 0.
"""
import array
import ctypes
import hashlib
import random
import socket
import sys

SAMPLE = 4 << 20  # repeated over the memory, with another first word each time


class Allocation(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", ctypes.c_int * 2),
                ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]


def content(size, seed):
    sample = random.Random(seed).randbytes(SAMPLE)
    for i in range(0, size, SAMPLE):
        yield i, (i.to_bytes(8, "little") + sample[8:])[:size - i]


def main():
    sock, (size, seed, gpu) = socket.socket(fileno=int(sys.argv[1])), map(int, sys.argv[2:])
    cuda = ctypes.CDLL("libcuda.so.1")

    def do(name, *arguments):
        r = getattr(cuda, name)(*arguments)
        if r:
            sys.exit(f"{name}: {r}")

    u64, sizes = ctypes.c_uint64, ctypes.c_size_t
    context, handle, at, fd, uuid = ctypes.c_void_p(), u64(), u64(), ctypes.c_int(), (ctypes.c_uint8 * 16)()
    granularity, wanted = sizes(), Allocation(1, 1, (1, gpu))
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    do("cuCtxPushCurrent_v2", context)
    do("cuDeviceGetUuid_v2", uuid, gpu)
    do("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(wanted), 1)
    map_size = -(-size // granularity.value) * granularity.value
    do("cuMemCreate", ctypes.byref(handle), sizes(map_size), ctypes.byref(wanted), u64(0))
    do("cuMemAddressReserve", ctypes.byref(at), sizes(map_size), sizes(0), u64(0), u64(0))
    do("cuMemMap", at, sizes(map_size), sizes(0), handle, u64(0))
    do("cuMemSetAccess", at, sizes(map_size), (ctypes.c_int * 3)(1, gpu, 3), sizes(1))
    for offset, piece in content(size, seed) if seed else []:
        do("cuMemcpyHtoD_v2", u64(at.value + offset), piece, sizes(len(piece)))
    if not seed:
        do("cuMemsetD8_v2", at, ctypes.c_uint8(0), sizes(size))
    do("cuCtxSynchronize")
    do("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, u64(0))
    text = bytes(uuid).hex()
    name = "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])
    sock.sendmsg([f"{map_size} cuda:GPU-{name}".encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd.value]))])
    room = ctypes.create_string_buffer(SAMPLE)
    while sock.recv(100):
        digest = hashlib.sha256()
        for offset in range(0, size, SAMPLE):
            n = min(SAMPLE, size - offset)
            do("cuMemcpyDtoH_v2", room, u64(at.value + offset), sizes(n))
            digest.update(memoryview(room)[:n])
        sock.send(digest.hexdigest().encode())


if __name__ == "__main__":
    main()
