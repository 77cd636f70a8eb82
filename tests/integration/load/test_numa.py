"""NUMA nodes of the memory of versions. tests/bpf/test_guest.py has a machine with two."""
import errno
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from lib import features, wire
from lib.fake_server import FakeServer
from lib.wire import Refused, Wire

from integration.load import policies
from integration.load.test_cold import forbid
from integration.load.test_load import gate_library, make_gate, u8, write_model  # noqa: F401
from integration.server.test_kill_matrix import FAULTY

MIB = 1 << 20
MISSING = 1022  # no machine has as many nodes
LAYOUT = wire.image([("t", 3 * MIB)])


@pytest.fixture(autouse=True)
def allowed():
    """The nodes of this machine that this process may use."""
    try:
        return policies.allowed()
    except OSError as e:
        pytest.skip(f"the kernel has no NUMA policies, or a supervisor forbids them: {e}")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, {"t": u8(os.urandom(3 * MIB))})
    return path


def policy(daemon, name="m"):
    """That of the newest version's memory, which is the file's, and so the same in every process."""
    with Wire(daemon.socket, features=wire.IMAGES) as w:
        fd = w.attach(name).slot_fd
        with policies.Mapping(fd) as m:
            return m.policy()


def load(daemon, model, *args, before=None, name="m"):
    return subprocess.run([*daemon.ctl_command(["load", "-q", *args, name, model])], env=daemon.env, preexec_fn=before,
                          capture_output=True, text=True, timeout=60)


def refused(daemon, model, *args, **kw):
    done = load(daemon, model, *args, **kw)
    assert done.returncode == 1 and daemon.ctl("ls", "--noheadings", check=False).stdout == "", done.stderr
    return done.stderr


def test_memory_has_the_policy_that_the_load_names_or_its_process_has(daemon, model, allowed):
    node = allowed[0]
    here = f"{node}"
    by_process = {None: (policies.DEFAULT, []), policies.BIND: (policies.BIND, [node]), policies.INTERLEAVE: (policies.INTERLEAVE, [node]),
                  policies.PREFERRED: (policies.PREFERRED, [node])}
    for mode, expected in by_process.items():
        done = load(daemon, model, before=mode and (lambda: policies.set_policy(mode, [node])))
        assert done.returncode == 0 and policy(daemon) == expected, (mode, done.stderr)
    by_words = {here: (policies.BIND, [node]), f"{here},{here}-{here}": (policies.BIND, [node]), f"preferred:{here}": (policies.PREFERRED, [node]),
                "interleave": (policies.INTERLEAVE, allowed), f"interleave:{here}": (policies.INTERLEAVE, [node]),
                "default": (policies.DEFAULT, [])}
    for words, expected in by_words.items():
        done = load(daemon, model, "--numa", words, before=lambda: policies.set_policy(policies.BIND, [node]))
        assert done.returncode == 0 and policy(daemon) == expected, (words, done.stderr)
    assert load(daemon, model, "--numa", "local").returncode == 0 and policy(daemon)[0] == policies.PREFERRED
    daemon.ctl("verify", "m")


def test_a_connection_places_what_is_created_until_it_says_otherwise(weightd, daemon, allowed, monkeypatch):
    """One after the other: none inherits from the one before."""
    connection = weightd._writer.Connection()
    monkeypatch.setattr(weightd._writer, "Connection", lambda _: connection)
    layout = weightd.Layout()
    layout.add("t", "U8", [3 * MIB])
    for words, expected in (("interleave", policies.INTERLEAVE), (f"{allowed[0]}", policies.BIND), (None, policies.DEFAULT), ("default", policies.DEFAULT)):
        with weightd.create("m", layout, numa=words) as writer:
            writer.publish()
        assert policy(daemon)[0] == expected
    with Wire(daemon.socket) as w:
        for mode, nodes, expected in ((wire.BIND, allowed, policies.BIND), (wire.INTERLEAVE, [], policies.INTERLEAVE),
                                      (wire.DEFAULT, [], policies.DEFAULT)):
            w.numa(mode, nodes)
            slot = w.create("w", LAYOUT)
            with policies.Mapping(slot.fd) as m:
                assert m.policy() == (expected, allowed if expected else [])
            w.abort(slot.writer)


@pytest.mark.parametrize("words", ["", "x", "-1", "0-", "1-0", "0,,1", "preferred", "preferred:", "interleave:", "interleavex", "1024", " 0"])
def test_words_that_name_no_nodes_are_refused(weightd, words):
    layout = weightd.Layout()
    layout.add("t", "U8", [1])
    with pytest.raises(weightd.Error, match="names no NUMA nodes: use 0 or 0,2-3, preferred:NODES, interleave") as e:
        weightd.create("m", layout, numa=words)
    assert e.value.errno == errno.EINVAL


def test_nodes_that_weightd_cannot_use_are_named(daemon, model, allowed, gpu, make_daemon):
    online = pathlib.Path("/sys/devices/system/node/online").read_text().strip()
    said = f"there is no NUMA node {MISSING} on this machine; it has {online}"
    for words in f"{MISSING}", f"preferred:{MISSING}", f"interleave:{allowed[0]},{MISSING}":
        assert said in refused(daemon, model, "--numa", words)
    with Wire(daemon.socket) as w:
        w.numa(wire.BIND, allowed)
        for mode in wire.PREFERRED, wire.BIND, wire.INTERLEAVE:
            with pytest.raises(Refused, match=said) as e:
                w.numa(mode, [allowed[0], MISSING])
            assert e.value.errno == errno.EINVAL
        with policies.Mapping(w.create("m", LAYOUT).fd) as m:
            assert m.policy() == (policies.BIND, allowed), "the policy before it stays"
    other = make_daemon(env=gpu.env)
    assert "is on no NUMA node: --numa is for host memory" in refused(other, model, "--device", "cuda:0", "--numa", f"{allowed[0]}")


def test_where_a_filter_forbids_policies_one_is_refused_and_that_of_the_process_ignored(make_daemon, model, allowed):
    """As of a container, or of a unit without mbind. A client that cannot ask has none."""
    code = f"import os, sys; sys.path.insert(0, {str(features.ROOT / 'tests')!r}); " \
           f"from integration.load.test_cold import forbid; forbid({{{policies.CALLS['mbind']}: {errno.EPERM}}}); os.execv(sys.argv[1], sys.argv[1:])"
    daemon = make_daemon(prefix=(sys.executable, "-c", code))
    said = refused(daemon, model, "--numa", f"{allowed[0]}")
    assert "a filter of system calls forbids weightd to place memory (mbind); allow it (the drop-in numa.conf, see weightd(8); CAP_SYS_NICE" in said
    assert load(daemon, model, before=lambda: policies.set_policy(policies.BIND, allowed)).returncode == 0
    assert policy(daemon) == (policies.DEFAULT, [])
    done = load(daemon, model, before=lambda: forbid({policies.CALLS["get_mempolicy"]: errno.EPERM}))
    assert done.returncode == 0, done.stderr


def test_nodes_without_enough_memory_are_named_before_any_is_made(make_daemon, model, allowed, require, tmp_path):
    """Past that, the kernel would kill a process. The machine as a whole has enough."""
    require("root")
    node = allowed[0]
    text = "".join(f"Node {node} {key}: {kb} kB\n" for key, kb in (("MemTotal", 9 << 20), ("MemFree", 1024), ("Active(file)", 1000),
                                                                  ("Inactive(file)", 24)))
    (tmp_path / "meminfo").write_text(text)
    file = f"/sys/devices/system/node/node{node}/meminfo"
    daemon = make_daemon("--reserve", "0", prefix=("unshare", "-m", "sh", "-c", f"mount --bind {shlex.quote(str(tmp_path / 'meminfo'))} {file} && "
                                                   'exec "$@"', "sh"))
    said = refused(daemon, model, "--numa", f"{node}")
    assert f"'m' on host needs 3.1 MB, 1.0 MB more than is free on NUMA nodes {node}; " in said and "or name more nodes (--numa, numactl)" in said
    assert load(daemon, model, "--numa", f"preferred:{node}").returncode == 0
    assert load(daemon, model).returncode == 0


@pytest.mark.parametrize("point", ["create-begun", "create-kept"])
def test_the_policy_holds_with_the_successor_of_a_server_that_died(make_daemon, model, allowed, require, tmp_path, point):
    """A client asks for it anew, before it sends the create again."""
    require("faults")
    env = {"WEIGHTD_FAULT": f"{point}:1", "WEIGHTD_FAULT_STATE": str(tmp_path / "passages")}
    daemon = make_daemon("--keeper", env=env, program=FAULTY)
    done = load(daemon, model, "--numa", "interleave")
    assert done.returncode == 0 and f"killed at {point}:1" in daemon.log, done.stderr
    assert policy(daemon) == (policies.INTERLEAVE, allowed)


def test_a_weightd_that_cannot_place_is_refused_to_those_who_must_have_it(daemon, model, allowed, tmp_path):
    """An older one has no such request. One that may not use the nodes answers with an error. What is left out is no error."""
    old, new = wire.SURVIVES | wire.LAYOUTS | wire.WITH_PROVIDE, wire.SURVIVES | wire.LAYOUTS | wire.WITH_PROVIDE | wire.WITH_NUMA
    bound = "the memory policy of this process (numactl) cannot be used: the test says no; or use --numa default"
    for known, words, mode, said in (old, ["--numa", "0"], None, "is too old to place memory on NUMA nodes"), (old, [], policies.BIND, None), \
            (new, ["--numa", "preferred:0"], None, "weightctl: the test says no"), (new, [], policies.BIND, bound), \
            (new, [], policies.PREFERRED, None), (new, [], policies.INTERLEAVE, None):
        with FakeServer(tmp_path / "fake.sock", features=known) as server:
            client = daemon.spawn("load", "-q", *words, "m", model, "--socket", server.path, text=True,
                                  preexec_fn=mode and (lambda: policies.set_policy(mode, allowed)))
            server.accept()
            peer = server.accept()  # a load has a connection of its own
            while (known == new or not said) and (op := peer.request().op) != wire.CREATE:
                assert op == (wire.NUMA if known == new else wire.LAYOUT), op
                peer.fail(errno.EINVAL if op == wire.NUMA else errno.ENOENT)
                if said:
                    break
            if not said:
                peer.fail(errno.ENOMEM, "there is no memory")
            assert (said or "there is no memory") in client.communicate(timeout=60)[1]


def test_a_process_on_one_node_of_several_prefers_that_node(daemon, model, allowed, require, tmp_path):
    """In a namespace with two nodes, the first of which has these CPUs."""
    require("root")
    node, cpus = allowed[0], sorted(os.sched_getaffinity(0))
    for nodes, of_node, expected in (f"{node},{node + 1}", cpus, (policies.PREFERRED, [node])), (f"{node}", cpus, (policies.DEFAULT, [])), \
            (f"{node},{node + 1}", cpus[1:] or [8191], (policies.DEFAULT, [])):
        (tmp_path / "has_memory").write_text(f"{nodes}\n")
        (tmp_path / "cpulist").write_text(",".join(map(str, of_node)) + "\n")
        mounts = [f"mount --bind {shlex.quote(str(tmp_path / name))} /sys/devices/system/node/{at}"
                  for name, at in (("has_memory", "has_memory"), ("cpulist", f"node{node}/cpulist"))]
        done = subprocess.run(["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh",
                               *daemon.ctl_command(["load", "-q", "m", model])], env=daemon.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and policy(daemon) == expected, (nodes, of_node, done.stderr)


def test_a_load_to_a_gpu_reads_and_pins_on_the_node_of_the_gpu(make_gpus, make_daemon, make_gate, allowed, require, tmp_path):
    """In a namespace in which the node of the GPU has one processor. Where it has none of the process, nothing changes."""
    require("root")
    path, node, cpus = tmp_path / "model.safetensors", allowed[0], sorted(os.sched_getaffinity(0))
    offset = write_model(path, {"t": u8(os.urandom(3 * MIB))})
    for cpu, expected in (cpus[-1], [cpus[-1]]), (8191, cpus):
        gpus = make_gpus(record=1)
        daemon = make_daemon(env=gpus.env)
        (tmp_path / "cpulist").write_text(f"{cpu}\n")
        prefix = ("unshare", "-m", "sh", "-c", f"mount -t tmpfs none /sys/bus && mkdir -p /sys/bus/pci/devices/0000:10:00.0 && "
                  f"echo {node} >/sys/bus/pci/devices/0000:10:00.0/numa_node && "
                  f"mount --bind {shlex.quote(str(tmp_path / 'cpulist'))} /sys/devices/system/node/node{node}/cpulist && "
                  'exec "$@"', "sh")
        gate = make_gate(path, offset, "pause")
        gate.start(daemon, "--device", "cuda:0", "--threads", "1", "--read", "buffered", "m", path, prefix=prefix)
        threads = {int(tid): sorted(os.sched_getaffinity(int(tid))) for tid in os.listdir(f"/proc/{gate.proc.pid}/task")}
        assert threads.pop(gate.proc.pid) == cpus, "the caller's thread is where it was"
        assert expected in threads.values() and all(cpus_of in (cpus, expected) for cpus_of in threads.values()), threads
        assert re.findall(r"^pin 1 host (\d+) ", (gpus.folder / "record").read_text(), re.M) == [str(len(expected))]
        done = gate.open()
        assert done.returncode == 0, done.stderr
