"""
The agent in Python: a process with a context on the GPU. It runs the commands of its standard input, one a line, and answers each
with a line, as agent.c does. It attaches, binds and loads by the package weightd, and by others' packages.

With "plain" it has no torch: bind() is then a look-up of each tensor's address.
"""
import ctypes
import gc
import json
import multiprocessing.connection
from multiprocessing.reduction import ForkingPickler  # to which torch.multiprocessing adds tensors
import os
import sys
import time
import traceback

import loaders
import weightd

COLUMNS, BF16_SIZE, HANDLE_SIZE = 256, 2, 64


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * HANDLE_SIZE)]


class Driver:
    """libcuda, of which a result other than 0 is an exception."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            if r := function(*arguments):
                raise RuntimeError(f"{name}: {r}")
        return call


class Agent:
    def __init__(self):
        self.torch, self.driver = None, Driver()
        self.buffer = self.module = self.views = self.state = self.listener = self.loaded = None
        self.messages = []

    # --- the GPU ---

    def open(self, gpu, *options):
        if "plain" not in options:
            import torch
            if not torch.cuda.is_available():
                raise RuntimeError("this torch sees no GPU")
            import torch.multiprocessing
            import weightd.torch
            self.torch = torch
            torch.cuda.set_device(int(gpu))
            torch.zeros(1, device="cuda")
            self.wait()
        else:
            context = ctypes.c_void_p()
            self.driver.cuInit(0)
            self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(gpu))
            self.driver.cuCtxPushCurrent_v2(context)
        return {"torch": self.torch and self.torch.__version__}

    def wait(self):
        if self.torch:
            self.torch.cuda.synchronize()
        else:
            self.driver.cuCtxSynchronize()

    def memory(self):
        """Bytes of this process's share of host memory."""
        with open("/proc/self/smaps_rollup") as f:
            return {"pss": next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))}

    def drop(self):
        """All that was attached, rebuilt or loaded."""
        self.module = self.views = self.loaded = None
        gc.collect()
        if self.buffer is not None:
            self.buffer.close()
        self.buffer = None
        if self.torch:
            self.torch.cuda.ipc_collect()
            self.torch.cuda.empty_cache()
        self.wait()
        return {}

    # --- a state_dict, of the same names, types and bytes in all ways ---

    def publish(self, name, device, size, n):
        """A version of these bytes; with torch, also a state_dict of this process with tensors of its own."""
        shapes = table(int(size), int(n))
        layout = weightd.Layout()
        for key, shape in shapes.items():
            layout.add(key, "BF16", shape)
        if self.torch:
            self.state = {key: self.torch.full(shape, 7, dtype=self.torch.bfloat16, device="cuda") for key, shape in shapes.items()}
        with weightd.create(name, layout, device=device, new_layout=True) as writer:
            if self.torch:
                weightd.torch.fill(writer, self.state)
            writer.publish()
        return {"bytes": sum(a * b for a, b in shapes.values()) * BF16_SIZE}

    def forget(self):
        """The state_dict, and what was sent of it."""
        self.state, self.messages = None, []
        return self.drop()

    def make_module(self, n, rows):
        """Without memory, as bind() and load_state_dict(assign=True) take it."""
        torch = self.torch
        module = torch.nn.Module()
        module.layers = torch.nn.ModuleList()
        for _ in range(n):
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(torch.empty(rows, COLUMNS, dtype=torch.bfloat16, device="meta"), requires_grad=False)
            module.layers.append(layer)
        return module

    def attach(self, name, device, size, n):
        """attach() and bind(); what was attached before is dropped first."""
        self.drop()
        module = self.make_module(int(n), rows(int(size), int(n))) if self.torch else None
        begin = time.monotonic_ns()
        self.buffer = weightd.attach(name, device=device)
        attached = time.monotonic_ns()
        if self.torch:
            self.module = weightd.torch.bind(module, self.buffer)
        else:
            self.views = [tensor.__cuda_array_interface__ for tensor in self.buffer.values()]
        return timed(begin, attached) | {"marks": self.marks()}

    def marks(self):
        """The first and the last word, as a reader sees them: 7 where there is torch."""
        if not self.torch:
            return []
        return [float(self.module.layers[i].weight[0, 0]) for i in (0, -1)]

    # --- torch.multiprocessing's way ---

    def prepare(self, path, n):
        """Pickles the state_dict as torch.multiprocessing does, once for each of n readers: torch counts the receivers of a message."""
        self.messages = [bytes(ForkingPickler.dumps(self.state)) for _ in range(int(n))]
        if not self.listener:
            self.listener = multiprocessing.connection.Listener(path, "AF_UNIX", backlog=len(self.messages) + 16)
        return {"message_bytes": len(self.messages[0])}

    def serve(self):
        for message in self.messages:
            with self.listener.accept() as reader:
                reader.send_bytes(message)
        return {}

    def rebuild(self, path, size, n):
        """rebuild_cuda_tensor() of each tensor, and load_state_dict() of the same module."""
        self.drop()
        module = self.make_module(int(n), rows(int(size), int(n)))
        begin = time.monotonic_ns()
        with multiprocessing.connection.Client(path, "AF_UNIX") as owner:
            message = owner.recv_bytes()
        tensors = ForkingPickler.loads(message)
        rebuilt = time.monotonic_ns()
        module.load_state_dict(tensors, assign=True)
        said = timed(begin, rebuilt)
        self.module = module
        return said | {"marks": self.marks()}

    # --- its handles alone ---

    def handles(self, path):
        """Writes the handle of each allocation that has tensors: several small tensors share one."""
        bases = {}
        for tensor in self.state.values():
            base, size = ctypes.c_uint64(), ctypes.c_size_t()
            self.driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(tensor.data_ptr()))
            bases[base.value] = None
        with open(path, "wb") as f:
            for base in bases:
                handle = IpcHandle()
                self.driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(base))
                f.write(bytes(handle))
        return {"n": len(bases)}

    def open_handles(self, path):
        self.drop()
        with open(path, "rb") as f:
            text = f.read()
        handles = [IpcHandle.from_buffer_copy(text, i) for i in range(0, len(text), HANDLE_SIZE)]
        opened = [ctypes.c_uint64() for _ in handles]
        begin = time.monotonic_ns()
        for handle, at in zip(handles, opened):
            self.driver.cuIpcOpenMemHandle_v2(ctypes.byref(at), handle, 1)
        said = timed(begin, begin)
        for at in opened:
            self.driver.cuIpcCloseMemHandle(at)
        return said | {"n": len(handles)}

    # --- files ---

    def load(self, way, path, device):
        """One of loaders.WAYS; what was loaded before is dropped first."""
        self.drop()
        more = {}
        begin = time.monotonic_ns()
        self.loaded = loaders.WAYS[way][0](path, device, more)
        self.wait()
        return timed(begin, begin) | more | {"version": loaders.version(way)}

    def read(self, path, how):
        begin = time.monotonic_ns()
        n = loaders.read(path, how == "direct")
        return timed(begin, begin) | {"bytes": n}

    def save(self, path, to):
        """The same tensors as torch.save() has them, on the disk."""
        from safetensors.torch import load_file
        with open(to, "wb") as f:
            self.torch.save(load_file(path), f)
            f.flush()
            os.fsync(f.fileno())
        return {}


def rows(size, n):
    return size // n // (COLUMNS * BF16_SIZE)


def table(size, n):
    return {f"layers.{i}.weight": (rows(size, n), COLUMNS) for i in range(n)}


def timed(begin, between):
    end = time.monotonic_ns()
    return {"begin_ns": begin, "end_ns": end, "ns": end - begin, "first_ns": between - begin}


def main():
    agent, out = Agent(), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of packages is not an answer
    for line in sys.stdin:
        command, *words = line.split()
        try:
            reply = {"ok": True} | getattr(agent, command)(*words)
        except Exception as e:
            traceback.print_exc()
            reply = {"ok": False, "code": None, "error": f"{type(e).__name__}: {e}"[-400:]}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
