"""weightctl trace log: acts, whatever they are, for a person and for a program."""
import json
import re
import signal
import socket
import subprocess
import time

import pytest
from integration.weightctl.test_weightctl import HOSTILE
from lib.daemon import environment
from lib.fake_agent import FakeAgent, pack
from lib.features import BUILD

END = {"end": True}


def act(word, number=1, kind="acted", pid=4711, comm="trainer", took=38_000, **more):
    return {"kind": kind, "act": word, "number": number, "ns": time.monotonic_ns() - 10**9, "took_ns": took, "pid": pid,
            "uid": 1000, "comm": comm} | more


GIVEN = {"from": {"pid": 4711, "uid": 0, "comm": "trainer", "ns": 5}}
FROM = {"from": {"number": 1, "pid": 4711, "comm": "trainer", "ns": 5}}
ACTS = [act("cuda_vmm_export", 1, fd=12, bytes=1_000_000_000, type="fd", failed=False, result=0),
        act("cuda_vmm_import", 2, pid=4712, comm="loader", fd=3, bytes=1_000_000_000, failed=True, result=201, **FROM),
        act("nccl_init", 3, pid=4713, comm=None, rank=0, ranks=8, id="0123456789abcdef", communicator=99, failed=False),
        act("flip", 4, pid=None, comm="weightd", took=None, buffer="llama", version=7, whole=True, list=[1], none=None),
        act("sync_phase", 6, sync="5f3a", role="member", phase="bytes", source="sync"),
        act("fd_receive", 7, pid=4714, comm="eval", took=None, fd=9, memory="memfd", name="llama", bytes=2_000_000_000, inode=99,
            by="message", **GIVEN),
        act("fd_receive", 8, pid=4714, took=None, fd=10, memory="nvidia", name=None, bytes=None, inode=7, by=None, **{"from": None}),
        act("nccl_calls", 5, took=None, calls=812, function="ncclAllReduce", bytes=3_000_000, errors=0, calling_ns=7, failed=False)]


def run(path, *args):
    done = subprocess.run([BUILD / "weightctl", "trace", "log", *args], capture_output=True, text=True, timeout=60,
                          env=environment(WEIGHTD_TRACE_SOCKET=str(path)))
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tracer():
    agent = FakeAgent(acts=[*ACTS, END])
    yield agent
    agent.close()


def test_acts_are_a_table(tracer):
    status, out, errors = run(tracer.path)
    assert (status, errors) == (0, "")
    assert re.match(r"AGE .*(\n *\d+[smh] .*){8}\n$", out)  # they are as old as the run of all tests
    assert [" ".join(line.split()[1:]) for line in out.splitlines()] == [
        "PID PROCESS ACT WHAT RESULT TOOK",
        "4711 trainer cuda_vmm_export 1.0 GB on fd 12, type fd ok 38 us",
        "4712 loader cuda_vmm_import 1.0 GB on fd 3, from 4711 (trainer) error 201 38 us",
        "4713 - nccl_init rank 0 of 8, id 0123456789abcdef ok 38 us",
        "- weightd flip llama@7, whole yes - -",
        "4711 trainer sync_phase bytes of member, sync 5f3a - 38 us",
        "4714 eval fd_receive 2.0 GB on fd 9, from 4711 (trainer), memfd llama by message - -",
        "4714 trainer fd_receive on fd 10, nvidia - -",
        "4711 trainer nccl_calls 812 ncclAllReduce, 3.0 MB, errors 0 ok -"]
    assert max(map(len, run(tracer.path, "-o", "AGE,PID,PROCESS,ACT,RESULT,TOOK")[1].splitlines())) <= 80


def test_one_process_or_kind_of_act_is_chosen(tracer):
    def numbers(*args):
        return run(tracer.path, "-n", "-o", "NUMBER", *args)[1].split()

    assert numbers() == ["1", "2", "3", "4", "6", "7", "8", "5"]
    assert numbers("--pid", "4712") == ["2"]
    assert numbers("--act", "cuda") == ["1", "2"]
    assert numbers("--act", "cuda_vmm_i", "--pid", "4711") == []


def test_a_queue_pair_that_nccl_used_says_where_it_leads():
    used = act("nccl_qp", 2, took=None, qp=257, device=0, rank=0, peer=1, way="send", bytes=5_000, since_ns=4711, rdma_device="mlx5_0", port=1,
               peer_qp=119, peer_gid="fe80::1", source="nccl", **FROM)
    agent = FakeAgent(acts=[used, END])
    status, out, _ = run(agent.path, "-n", "-o", "WHAT")
    agent.close()
    assert (status, out.strip()) == (0, "5.0 kB, rank 0, peer 1, qp 257 to qp 119 at fe80::1, from 4711 (trainer), device 0, way send, "
                                        "rdma_device mlx5_0, port 1")


def test_that_nothing_is_known_is_said():
    agent = FakeAgent(acts=[END])
    assert run(agent.path) == (0, "", "weightctl: there are no acts; 'weightctl trace doctor' shows the active probes\n")
    assert run(agent.path, "--act", "x")[2].startswith("weightctl: there are no such acts; ")
    assert run(agent.path, "--json") == (0, "", "")
    agent.close()


def test_json_is_what_was_said(tracer):
    status, out, _ = run(tracer.path, "--json")
    assert status == 0 and out.isascii()
    assert [json.loads(line) for line in out.splitlines()] == ACTS


def test_hostile_acts_harm_no_terminal():
    wrong = [act(HOSTILE, comm=HOSTILE, pid=-1, **{HOSTILE: HOSTILE, "from": HOSTILE, "bytes": -1}), act(None), {"kind": "acted"},
             act("x", number=HOSTILE, ns=-1, took="x", fd=[], failed=1, **{"from": {"pid": "x", "comm": 5}})]
    agent = FakeAgent(acts=[*wrong, END])
    for args in [], ["--json"]:
        status, out, _ = run(agent.path, *args)
        assert status == 0 and not re.search(r"[\x00-\x09\x0b-\x1f\x80-\x9f\u202e]", out)
    agent.close()


def test_a_refusal_is_told(tmp_path):
    agent = FakeAgent(acts=[END | {"error": "that is for root"}], observe=[END | {"error": "that is for root"}])
    for args in [], ["--follow"]:
        assert run(agent.path, *args) == (1, "", "weightctl: that is for root\n")
    agent.close()
    assert run(tmp_path / "none")[0] == 1


class Hasty(FakeAgent):
    """It answers without reading the request, and closes."""

    def serve(self, connection):
        with connection:
            connection.recv(1 << 17, socket.MSG_PEEK)
            for packet in [*ACTS, END]:
                connection.send(pack(packet))


def test_last_words_are_heard_of_one_that_did_not_read():
    agent = Hasty()
    status, out, errors = run(agent.path, "--json")
    agent.close()
    assert (status, errors, [json.loads(line) for line in out.splitlines()]) == (0, "", ACTS)


def test_what_comes_is_followed_and_nothing_said_twice():
    new = act("cuda_ipc_open", 6, kind="act", failed=True, result=1)

    def acts(connection, _):
        for packet in [ACTS[0], ACTS[1] | {"kind": "act"}, ACTS[1], {"kind": "progress"}, END, ACTS[1] | {"kind": "act"},
                       {"kind": "gap", "lost": 7},
                       {"kind": "gap", "lost": None, "path": "/lib/\x1b.so", "from_ns": 1_000_000, "to_ns": 13_000_000}, new]:
            connection.send(pack(packet))

    agent = FakeAgent(observe=[{"kind": "row"}, ACTS[0] | {"kind": "act"}, END], acts=acts)
    proc = subprocess.Popen([BUILD / "weightctl", "trace", "log", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(WEIGHTD_TRACE_SOCKET=str(agent.path)))
    lines = [proc.stdout.readline().partition("Z  ")[2] for _ in range(3)]
    proc.send_signal(signal.SIGINT)
    out, errors = proc.communicate(timeout=60)
    agent.close()
    assert lines == ["4711 trainer  cuda_vmm_export: 1.0 GB on fd 12, type fd, 38 us\n",
                     "4712 loader  cuda_vmm_import: 1.0 GB on fd 3, from 4711 (trainer): error 201, 38 us\n",
                     "4711 trainer  cuda_ipc_open: error 1, 38 us\n"]
    assert (proc.returncode, out) == (0, "")
    assert errors.splitlines() == [
        "weightctl: following", "weightctl: 7 events were lost",
        "weightctl: calls into /lib/\\x1b.so before it was probed, in 12 ms at the most, are unknown"]
