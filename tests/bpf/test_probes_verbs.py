"""Calls of processes to verbs, and the queue pairs in NCCL's events; the libraries are stand-ins."""
import json
import os
import signal
import sys

import pytest
from bpf.probing import acts, is_probed, libraries, until
from lib import features, nccl_host
from lib.gpus import FAKE

pytestmark = pytest.mark.probes


@pytest.fixture
def tracer(tracer):
    features.require("probes")
    return tracer


VERBS = f"""
import ctypes, struct
verbs = ctypes.CDLL("{FAKE}/verbs/libibverbs.so.1")
dlvsym = ctypes.CDLL(None).dlvsym
dlvsym.restype = ctypes.c_void_p
dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
P = ctypes.c_void_p
def old(name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(dlvsym(verbs._handle, name.encode(), b"IBVERBS_1.0"))
for name in "ibv_open_device", "ibv_create_qp", "ibv_reg_mr", "ibv_reg_mr_iova", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr":
    getattr(verbs, name).restype = P
""" + """
def domain_of(device):
    name = ctypes.create_string_buffer(bytes(24) + device.encode().ljust(64, bytes(1)))
    context = (P * 1)(ctypes.addressof(name))
    domain = (P * 1)(ctypes.addressof(context))
    domain.leads_to = name, context
    return domain
domains = {name: domain_of(name) for name in ("mlx5_0", "mlx5_1")}
def create(function, type=2, device="mlx5_0"):
    attr = ctypes.create_string_buffer(struct.pack("4Q5IIi", 0, 0, 0, 0, *[1] * 5, type, 0))
    return function(domains[device], attr)
def number(qp):
    return ctypes.c_uint32.from_address(qp + 52).value
def attr(state, qp=0, gid=bytes(16), lid=0, port=0):
    return ctypes.create_string_buffer(struct.pack("<8I6I16sIBBBxHBBBBBx", state, 0, 0, 0, 0, 0, 0, qp, *[0] * 6, gid, 0, 0, 0,
                                                   0, lid, 0, 0, 0, gid != bytes(16), port))
"""
STATE, PATH, PEER = 1, 0x80, 0x100000
LACKS = {"kind", "ns", "took_ns", "number", "pid", "tid", "uid", "comm"}


def told(client, process):
    return [{key: act[key] for key in act if key not in LACKS} for act in acts(client, pid=process.pid)]


@pytest.fixture
def verbs(client, start):
    process = start(VERBS)
    until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
    return process


def test_queue_pairs_are_told_with_their_peers(client, verbs):
    gid = bytes.fromhex("fe80000000000000") + bytes(range(1, 9))
    qp = verbs.do(f"""
qp = create(verbs.ibv_create_qp)
q = P(qp)
for n, mask, a in (1, {STATE}, attr(1)), (2, {STATE | PATH | PEER}, attr(2, 0x77, {gid}, 9, 1)), (3, {STATE}, attr(3)):
    assert verbs.ibv_modify_qp(q, a, mask) == 0
assert verbs.ibv_modify_qp(q, attr(2, 0x78, lid=9, port=2), {STATE | PATH | PEER}) == 0
assert verbs.ibv_modify_qp(q, attr(3), 0) != 0
ret = number(qp)
assert verbs.ibv_destroy_qp(q) == 0
assert create(lambda _, attr: verbs.ibv_create_qp(None, attr)) is None
""")
    device = {"device": "mlx5_0"}
    fine = device | {"failed": False, "result": 0}
    connect = fine | {"act": "qp_connect", "function": "ibv_modify_qp", "qp": qp, "state": "RTR"}
    assert told(client, verbs) == [
        device | {"act": "qp_create", "function": "ibv_create_qp", "qp": qp, "type": "RC", "failed": False, "result": None},
        connect | {"peer_qp": 0x77, "peer_gid": "fe80::102:304:506:708", "peer_lid": 9, "port": 1},
        connect | {"peer_qp": 0x78, "peer_lid": 9, "port": 2},
        fine | {"act": "qp_destroy", "function": "ibv_destroy_qp", "qp": qp},
        {"act": "qp_create", "function": "ibv_create_qp", "device": None, "failed": True, "result": None}]


def test_the_real_library_has_all_of_them(client, start):
    features.require("ibverbs")
    process = start("import ctypes; library = ctypes.CDLL('libibverbs.so.1')")
    path = next(line.split()[5] for line in open(f"/proc/{process.pid}/maps") if "libibverbs" in line)
    assert (libraries(client)[path]["on"], libraries(client)[path]["functions"]) == (True, 8)


def test_old_versions_are_seen_once(client, verbs):
    qp = verbs.do(f"""
assert old("ibv_open_device", P, ctypes.c_char_p)(bytes(24) + b"mlx5_0".ljust(64, bytes(1)))
qp = create(old("ibv_create_qp", P, P, P))
assert old("ibv_modify_qp", ctypes.c_int, P, P, ctypes.c_int)(qp, attr(2, 5), {STATE | PEER}) == 0
ret = number(qp)
assert old("ibv_destroy_qp", ctypes.c_int, P)(qp) == 0
assert old("ibv_reg_mr", P, P, P, ctypes.c_size_t, ctypes.c_int)(1, 0x1000, 4096, 0)
""")
    found = told(client, verbs)
    assert [(act["act"], act.get("qp"), act["failed"]) for act in found] == [
        ("rdma_open", None, False), ("qp_create", qp, False), ("qp_connect", qp, False), ("qp_destroy", qp, False),
        ("rdma_register", None, False)]
    assert [act.get("device") for act in found] == 4 * ["mlx5_0"] + [None]


def test_memory_is_registered_once_whatever_calls_what(client, verbs):
    verbs.do("""
size, big = ctypes.c_size_t(5 << 30), ctypes.c_uint64(7)
assert verbs.ibv_reg_mr(P(1), P(0x1000), size, 0)
assert verbs.ibv_reg_mr_iova(P(1), P(0x2000), size, big, 0)
assert verbs.ibv_reg_mr_iova2(P(1), P(0x3000), size, big, 0)
assert verbs.ibv_reg_dmabuf_mr(P(1), big, size, big, 5, 0)
assert verbs.ibv_reg_mr(None, P(0x4000), size, 0) is None
""")
    found = told(client, verbs)
    assert [(act["act"], act.get("address"), act.get("fd"), act["bytes"], act["failed"]) for act in found] == [
        ("rdma_register", 0x1000, None, 5 << 30, False), ("rdma_register", 0x2000, None, 5 << 30, False),
        ("rdma_register", 0x3000, None, 5 << 30, False), ("rdma_register", None, 5, 5 << 30, False),
        ("rdma_register", 0x4000, None, 5 << 30, True)]


# --- queue pairs in NCCL's events ---

NCCL_QP = VERBS + f"CONNECTS = {STATE | PATH | PEER}" + """
import os, time
from lib import tracing
tracer = tracing.Client(os.environ["WEIGHTD_TRACE_SOCKET"])
now = time.monotonic_ns
qps = {}
def make(device="mlx5_0", peer=0x77):
    qp = create(verbs.ibv_create_qp, device=device)
    qps[device, number(qp)] = qp
    if peer:
        connect(qp, peer)
    return number(qp)
def connect(qp, peer):
    a = attr(2, peer, bytes.fromhex("fe80000000000000") + bytes(range(1, 9)), 9, 1)
    assert verbs.ibv_modify_qp(P(qp), a, CONNECTS) == 0
def destroy(number, device="mlx5_0"):
    assert verbs.ibv_destroy_qp(P(qps.pop((device, number)))) == 0
def tell(qp, since_ns=None, ns=None):
    used = now()
    act = dict(act="nccl_qp", sync="nccl:dp", communicator="dp", hash="0", rank=0, peer=1, way="send", bytes=5, events=1,
               device=0, qp=qp, since_ns=since_ns or used, ns=ns or used)
    tracer.ask("tell", source="nccl", acts=[act])
"""


@pytest.fixture
def start_trainer(client, tracer, start):
    """start_trainer(): a process that makes queue pairs and sends events about them as NCCL's plug-in does."""
    def start_one(**kw):
        process = start(NCCL_QP, env={"WEIGHTD_TRACE_SOCKET": tracer.socket}, **kw)
        until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
        return process

    return start_one


@pytest.fixture
def trainer(start_trainer):
    return start_trainer()


def origin(act):
    return act and {key: act[key] for key in ("number", "pid", "comm", "ns")}


def used(client, process, code):
    """The event of the queue pair that this code reports as used."""
    process.do(code)
    return acts(client, pid=process.pid, act="nccl_qp")[-1]


def connects(client, process, **wanted):
    return acts(client, pid=process.pid, act="qp_connect", **wanted)


def test_what_nccl_used_is_joined_with_what_connected_it(client, trainer):
    qp = trainer.do("ret = make(peer=None)")
    act = used(client, trainer, f"tell({qp})")
    [made] = acts(client, pid=trainer.pid, act="qp_create")
    assert act["from"] == origin(made) and act["rdma_device"] == "mlx5_0" and "peer_qp" not in act
    for peer in 0x77, 0x78:
        act = used(client, trainer, f"connect(qps['mlx5_0', {qp}], {peer}); tell({qp})")
        assert act["from"] == origin(connects(client, trainer)[-1])
        assert act["number"] > act["from"]["number"] and act["ns"] > act["from"]["ns"]
        assert {key: act[key] for key in ("rdma_device", "port", "peer_qp", "peer_lid", "peer_gid", "device")} == {
            "rdma_device": "mlx5_0", "port": 1, "peer_qp": peer, "peer_lid": 9, "peer_gid": "fe80::102:304:506:708", "device": 0}


def test_what_was_not_seen_is_joined_with_nothing(client, trainer, start_trainer):
    qp = start_trainer().do("ret = make()")
    for number in qp, qp + 1, qp | 1 << 32, 0:
        act = used(client, trainer, f"tell({number})")
        assert act["from"] is None and not {"rdma_device", "port", "peer_qp", "peer_lid", "peer_gid"} & set(act), "another's"
    own = trainer.do("ret = make()")
    assert own == qp and used(client, trainer, f"tell({qp})")["from"] == origin(*connects(client, trainer))
    assert used(client, trainer, f"tell({qp}, since_ns=1)")["from"] is None, "it was not there then"


def test_what_says_nothing_is_joined_with_nothing(client, trainer):
    qp = trainer.do("ret = make(); zero = qps['mlx5_0', ret]; ctypes.c_uint32.from_address(zero + 52).value = 0; connect(zero, 1)")
    assert used(client, trainer, "tell(0)")["from"] and used(client, trainer, f"tell({qp})")["from"]
    assert used(client, trainer, "tell(None)")["from"] is None
    assert used(client, trainer, f"tell({qp}, ns=1)")["from"] is None, "it was over before it began"


def test_what_is_told_of_a_queue_pair_when_it_is_gone_is_joined(client, trainer):
    """NCCL destroys them before it closes its communicator, and the plug-in sends the last events then."""
    qp = trainer.do("qp = make(); before = now(); destroy(qp); ret = qp")
    assert used(client, trainer, f"tell({qp}, before, before)")["from"] == origin(*connects(client, trainer))
    assert used(client, trainer, f"tell({qp}, before)")["from"] is None, "it was used after its end"


def test_one_number_of_two_devices_is_joined_with_its_own_or_none(client, trainer):
    qp = trainer.do("ret = make(peer=1)")
    trainer.do("alone = now()")
    assert trainer.do("ret = make('mlx5_1', 2)") == qp
    first, second = connects(client, trainer)
    assert (first["device"], second["device"]) == ("mlx5_0", "mlx5_1")
    assert used(client, trainer, f"tell({qp})")["from"] is None, "NCCL does not name the device"
    assert used(client, trainer, f"tell({qp}, alone)")["from"] == origin(first), "then there was no other"
    trainer.do(f"both = now(); destroy({qp})")
    act = used(client, trainer, f"tell({qp}, both)")
    assert (act["from"], act["rdma_device"], act["peer_qp"]) == (origin(second), "mlx5_1", 2)
    assert used(client, trainer, f"tell({qp})")["from"] == origin(second)
    assert used(client, trainer, f"tell({qp}, both, both)")["from"] is None


def test_a_device_whose_name_cannot_be_read_may_be_any(client, trainer):
    qp = trainer.do("ret = make('mlx5_1')")
    other = trainer.do("ret = make(); P.from_address(qps['mlx5_0', ret]).value = 8; connect(qps['mlx5_0', ret], 0x79)")
    assert other == qp and [act["device"] for act in connects(client, trainer)] == ["mlx5_1", "mlx5_0", None]
    assert used(client, trainer, f"tell({qp})")["from"] is None
    trainer.do(f"destroy({qp})")
    assert acts(client, pid=trainer.pid, act="qp_destroy")[-1]["device"] is None
    assert used(client, trainer, f"tell({qp})")["from"] is None, "any of them was destroyed"


def test_a_process_in_a_pid_namespace_is_joined_with_its_own(client, start_trainer):
    process = start_trainer(prefix=["unshare", "--pid", "--fork"])
    process.do("tell(make()); assert os.getpid() == 1")
    [act] = [act for act in acts(client, act="nccl_qp")]
    assert act["from"]["pid"] == act["pid"] != process.pid
    assert act["from"] == origin(*acts(client, pid=act["pid"], act="qp_connect"))


# clone3() with a number that is free
AS_PID = """
import ctypes, os, sys
pid = (ctypes.c_int32 * 1)(int(sys.argv[1]))
args = (ctypes.c_uint64 * 11)(*[0] * 4, 17, *[0] * 3, ctypes.addressof(pid), 1)
child = ctypes.CDLL(None, use_errno=True).syscall(435, args, 80)
if child == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
assert child > 0, os.strerror(ctypes.get_errno())
os.waitpid(child, 0)
"""


def test_a_process_that_has_anothers_number_later_is_not_taken_for_it(client, start_trainer):
    process = start_trainer()
    qp = process.do("ret = make()")
    assert used(client, process, f"tell({qp})")["from"]
    process.close()
    another = start_trainer(prefix=[sys.executable, "-c", AS_PID, str(process.pid)])
    another.pid = another.do("ret = os.getpid()")
    assert another.pid == process.pid
    assert used(client, another, f"tell({qp})")["from"] is None
    assert another.do("ret = make()") == qp
    assert used(client, another, f"tell({qp})")["from"] == origin(connects(client, another)[-1])


def test_calls_are_known_before_what_is_told_of_them(client, tracer, trainer):
    """Though the tracer receives the event first."""
    os.kill(tracer.proc.pid, signal.SIGSTOP)
    try:
        trainer.begin("""
ahead = now() + 200_000_000
qp = max([0x100, *(number for _, number in qps)]) + 1
act = dict(act="nccl_qp", sync="nccl:dp", communicator="dp", hash="0", rank=0, peer=1, way="send", bytes=5, events=1,
           device=0, qp=qp, since_ns=ahead, ns=ahead)
tracer.socket.send(json.dumps({"op": "tell", "source": "nccl", "acts": [act]}).encode())
ret = make() == qp and now() < ahead
while now() <= ahead: pass
""")
        assert json.loads(trainer.proc.stdout.readline())
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)
    [act] = until(lambda: acts(client, pid=trainer.pid, act="nccl_qp"))  # it may answer us before it reads the trainer's event
    assert act["from"] == origin(*connects(client, trainer))


def test_what_the_plugin_tells_is_joined(client, tracer):
    nccl_host.require()
    with nccl_host.Host(tracer) as host:
        assert host.say("verbs", FAKE / "verbs/libibverbs.so.1") == "verbs"
        until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
        host.init()
        qp = int(host.say("make", 0, "mlx5_3"))
        host.say("connect", 0, 0x77)
        host.say("op", 0, 0, "-", 4, 1, 0)
        host.say("step", 1, 0, 0)
        host.say("qp", 2, 0, 1, 0, qp, 5000)
        for handle in 2, 1, 0:
            host.say("stop", handle)
        host.say("destroy", 0)
        host.say("finalize", 0)
    [act] = acts(client, pid=host.proc.pid, act="nccl_qp")
    assert act["from"] == origin(*acts(client, pid=host.proc.pid, act="qp_connect"))
    assert (act["peer"], act["rdma_device"], act["peer_qp"]) == (4, "mlx5_3", 0x77)
