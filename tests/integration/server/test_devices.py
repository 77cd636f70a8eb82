"""
Places of memory, in libweightd, weightctl and the Python package, and names of devices: a
number for people, a UUID for the server. The server is played by the test, which makes up the GPUs.
"""
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading

import pytest
from integration.weightctl.test_weightctl import in_terminal
from lib import features, wire
from lib.fake_server import FakeServer
from lib.features import BUILD, ROOT

LIST_DEVICES = 6
RECORD = struct.Struct("<64s 128s 256s 4Q 4I")
CUDA, IPC, FABRIC, RDMA, MIG = (1 << n for n in range(5))
UUIDS = ["8e2a4d5c-0000-4000-8000-00000000000%d" % n for n in range(4)]
H100 = "NVIDIA H100 80GB HBM3"
NO_GPU = "libcuda.so.1 cannot be opened (no such file); install the driver of NVIDIA"


def gpu(n, kind="GPU"):
    return f"cuda:{kind}-{UUIDS[n]}"


def device(name, kind="", why="", total=0, free=0, ours=0, granularity=4096, index=0, flags=0, driver=0, capability=0):
    return RECORD.pack(name.encode(), kind.encode(), why.encode(), total, free, ours, granularity, index, flags, driver,
                       capability)


def h100(n, flags=CUDA | IPC | FABRIC | RDMA, index=None, kind="GPU", **kw):
    return device(gpu(n, kind), H100, index=n if index is None else index, flags=flags,
                  **dict(total=85_520_809_984, free=84_000_000_000, ours=16_100_000_000, granularity=2 << 20,
                         driver=13000, capability=90) | kw)


HOST = device("host", total=135 << 30, free=100 << 30)
NONE = device("cuda", why=NO_GPU)


def buffer(name, where):
    """struct wire_buffer_record of one that is ready."""
    return struct.pack("<128s 64s 6Q 10I Q 16s 16s", name.encode(), where.encode(), 1, 1, 4096, 8192, 0, 1, 0, 0, 0, 0o640,
                       2, 1, 0, 0, 1, 0, 1, bytes(16), bytes(16))


def slot(name, where, state):
    return struct.pack("<128s 64s 5Q 4I", name.encode(), where.encode(), 1, 1, 4096, 4096, 0, state, 0, 0, 0)


class Devices(FakeServer):
    """
    Answers each client until it closes. `lists` are the records by kind, one by page if they are many;
    `asked` has the requests: (kind, name, device) of lists, (op, name, device) of others, which are done.
    """

    def __init__(self, path, **lists):
        super().__init__(path, features=0)
        kinds = dict(buffers=wire.BUFFERS, versions=wire.VERSIONS, slots=wire.SLOTS, users=wire.USERS, devices=LIST_DEVICES)
        self.lists, self.asked = {kinds[k]: v for k, v in lists.items()}, []
        self.env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"WEIGHTD_SOCKET": self.path}
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def __exit__(self, *_):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect(self.path)  # and sends nothing
        self.thread.join()
        super().__exit__()

    def serve(self):
        with contextlib.suppress(AssertionError):
            while True:
                peer = self.accept()
                with contextlib.suppress(AssertionError):  # it has hung up
                    while True:
                        self.answer(peer)
                peer.close()

    def answer(self, peer):
        asked = peer.request()
        target = [raw.rstrip(b"\0").decode() for raw in asked.values[:2]] if asked.op != wire.STAT else []
        if asked.op == wire.LIST:
            after, kind = asked.values[2:4]
            self.asked.append((kind, *target))
            records = [r for r in self.lists.get(kind, []) if not target[0] or r.startswith(target[0].encode() + b"\0")]
            peer.page(records[after:after + 4], after + 4 if after + 4 < len(records) else 0)
        elif asked.op == wire.STAT:
            peer.reply("9Q", *[0] * 9)
        else:
            self.asked.append((asked.op, *target))
            version = [7] if asked.op in (wire.WAIT, wire.ROLLBACK) else []
            peer.reply("Q" * len(version), *version)

    # as of Daemon, for in_terminal()

    @staticmethod
    def ctl_command(args):
        return [BUILD / "weightctl", *map(str, args)]

    def ctl(self, *args, check=True):
        done = subprocess.run(self.ctl_command(args), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{args} exited with {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def json(self, *args):
        return json.loads(self.ctl(*args, "--json").stdout)


@pytest.fixture
def play(tmp_path, require):
    """play(devices=[...], buffers=[...]): a server with these records."""
    with contextlib.ExitStack() as stack:
        yield lambda **lists: stack.enter_context(Devices(tmp_path / "fake.sock", **lists))


# --- weightctl devices --------------------------------------------------------------------------------


def test_devices_are_shown_with_what_a_number_means(play):
    server = play(devices=[HOST, h100(0), h100(1, flags=CUDA)])
    assert re.sub(r" +\n", "\n", server.ctl("devices").stdout).split("\n") == [
        "DEVICE NAME                     TOTAL     FREE    OURS SUPPORTS",
        "host   -                     145.0 GB 107.4 GB     0 B -",
        f"cuda:0 {H100}  85.5 GB  84.0 GB 16.1 GB vmm,ipc,fabric,rdma",
        f"cuda:1 {H100}  85.5 GB  84.0 GB 16.1 GB vmm",
        "",
        f"cuda:0 is {gpu(0)}",
        f"cuda:1 is {gpu(1)}",
        ""]


def test_without_gpus_there_is_the_host_and_the_reason(play):
    server = play(devices=[HOST, NONE])
    lines = server.ctl("devices").stdout.splitlines()
    assert [line.split()[0] for line in lines if line] == ["DEVICE", "host", "cuda:"]
    assert lines[-1] == f"cuda: {NO_GPU}"
    assert [(d["device"], d["why"], d["index"]) for d in server.json("devices")["devices"]] == [
        ("host", None, None), ("cuda", NO_GPU, None)]


def test_a_gpu_that_cannot_be_used_says_why(play):
    server = play(devices=[HOST, h100(0, flags=0, why="its driver is older than 11.4; install a newer one")])
    assert "cuda:0: its driver is older than 11.4; install a newer one\n" in server.ctl("devices").stdout


def test_json_has_all_of_a_device(play):
    server = play(devices=[h100(2, flags=CUDA | RDMA | MIG, kind="MIG")])
    assert server.json("devices") == {"devices": [{
        "device": gpu(2, "MIG"), "name": H100, "total": 85_520_809_984, "free": 84_000_000_000, "ours": 16_100_000_000,
        "supports": "vmm,rdma", "uuid": f"MIG-{UUIDS[2]}", "index": 2, "granularity": 2 << 20, "vmm": True, "ipc": False,
        "fabric": False, "rdma": True, "mig": True, "driver": "13.0", "capability": "9.0", "why": None}]}


def test_many_devices_come_in_pages(play):
    server = play(devices=[HOST] + [h100(0, index=n) for n in range(9)])
    assert [d["index"] for d in server.json("devices")["devices"]] == [None, *range(9)]


def test_the_table_of_devices_fits_into_80_columns(play):
    status, text = in_terminal(play(devices=[HOST, h100(0), h100(1), NONE]), "devices")
    table = text.replace("\r", "").split("\n\n")[0].splitlines()
    assert status == 0 and len(table) == 4
    assert [line for line in table if len(line) > 80] == []


def test_columns_that_are_chosen_stand_alone(play):
    server = play(devices=[HOST, h100(0)])
    assert server.ctl("devices", "-n", "-o", "device,uuid").stdout.split() == ["host", "-", "cuda:0", f"GPU-{UUIDS[0]}"]


def test_what_a_driver_says_cannot_disturb_a_terminal(play):
    server = play(devices=[device(gpu(0), "evil\x1b[31m", why="no\nway")])
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", server.ctl("devices").stdout)


# --- Names of devices everywhere ----------------------------------------------------------------------


def test_tables_show_numbers_and_json_the_names_that_mean_the_same_everywhere(play):
    names = ["host", gpu(0), gpu(1), gpu(3)]
    server = play(devices=[HOST, h100(0), h100(1)], buffers=[buffer("m", n) for n in names],
                  slots=[slot("m", gpu(1), wire.ORPHAN)])
    shown = server.ctl("ls", "-n", "-o", "DEVICE").stdout.split()
    assert sorted(shown) == sorted(["host", "cuda:0", "cuda:1", gpu(3)]), "one that is not there any more has no number"
    assert sorted(b["device"] for b in server.json("ls")["buffers"]) == sorted(names)
    assert server.ctl("stat", "-n", "-o", "DEVICE,STATE").stdout.split()[-2:] == ["cuda:1", "orphan"]
    assert server.json("stat")["slots"][0]["device"] == gpu(1)


def test_nobody_looks_for_gpus_where_there_is_none_in_the_list(play):
    server = play(devices=[HOST], buffers=[buffer("m", "host")])
    server.ctl("ls")
    server.ctl("show", "m")
    server.ctl("rm", "m", "--device", gpu(0))
    assert [kind for kind, *_ in server.asked] == [wire.BUFFERS, wire.BUFFERS, wire.VERSIONS, wire.DROP]


def test_a_table_needs_no_numbers(play):
    server = play(buffers=[buffer("m", gpu(0))])
    assert server.ctl("ls", "-n", "-o", "NAME,DEVICE").stdout.split() == ["m", gpu(0)]


@pytest.mark.parametrize("args,op", [
    (["rm", "m"], wire.DROP), (["rollback", "m"], wire.ROLLBACK), (["wait", "m"], wire.WAIT),
    (["chmod", "0600", "m"], wire.ACCESS), (["chown", "0", "m"], wire.ACCESS)])
@pytest.mark.parametrize("spelling", ["cuda:1", gpu(1), gpu(1).upper().replace("CUDA", "cuda")])
def test_a_number_is_that_of_the_list(play, args, op, spelling):
    server = play(devices=[HOST, h100(0), h100(1)])
    said = server.ctl(*args, "--device", spelling).stdout
    assert [asked for asked in server.asked if asked[0] != LIST_DEVICES] == [(op, "m", gpu(1))]
    assert said in ("", "m@7 on cuda:1\n")


def test_cuda_is_the_first(play):
    server = play(devices=[HOST, h100(0), h100(1)], buffers=[buffer("a", gpu(0)), buffer("b", gpu(1)), buffer("c", "host")])
    assert server.ctl("ls", "--device", "cuda", "-n", "-o", "NAME").stdout.split() == ["a"]
    assert server.ctl("ls", "--device", "cuda:1", "-n", "-o", "NAME").stdout.split() == ["b"]
    assert server.ctl("show", "b", "--device", "cuda:1", "-b").stdout.splitlines()[1].split() == ["DEVICE", "cuda:1"]
    done = server.ctl("show", "b", "--device", "cuda:0", check=False)
    assert "no buffer 'b' on cuda:0, but one on cuda:1 (--device cuda:1)" in done.stderr


@pytest.mark.parametrize("devices,want", [
    ([HOST, h100(0)], "there is no cuda:1; 'weightctl devices' lists those there are"),
    ([HOST, NONE], f"there is no cuda:1: {NO_GPU}"),
    ([HOST, h100(0, kind="MIG", index=1), h100(1, kind="MIG", index=1)], "name one by its UUID")])
def test_a_number_that_means_nothing_is_refused_with_the_reason(play, devices, want):
    server = play(devices=devices)
    done = server.ctl("rm", "m", "--device", "cuda:1", check=False)
    assert done.returncode == 1 and want in done.stderr
    assert all(kind == LIST_DEVICES for kind, *_ in server.asked)


def test_devices_are_completed(play):
    from integration.weightctl.test_weightctl import complete
    server = play(devices=[HOST, h100(0), h100(1)])
    assert complete(server, "weightctl ls --device ho") == ["host"]
    assert complete(server, "weightctl ls --device cuda:") == ["0", "1"]  # readline cuts at the colon


def test_the_package_lists_them(play):
    features.require("library")
    server = play(devices=[HOST, h100(1, flags=CUDA | MIG, kind="MIG")])
    code = f"""if True:
        import weightd
        host, part = weightd.devices()
        assert (host.device, host.total, host.why, host.vmm) == ("host", {135 << 30}, "", False), host
        assert part == weightd.DeviceInfo("{gpu(1, "MIG")}", "{H100}", "", 85_520_809_984, 84_000_000_000,
            16_100_000_000, {2 << 20}, 1, 13000, 90, True, False, False, False, True), part"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60,
                          env=server.env | {"PYTHONPATH": str(ROOT / "libclient/python")})
    assert (done.returncode, done.stderr) == (0, "")
