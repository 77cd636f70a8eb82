"""weightctl doctor: each fault provoked, its way out, and the exit status by the worst of them."""
import grp
import json
import os
import socket
import subprocess
import time

import pytest
from integration.weightctl.test_sync import make_agent  # noqa: F401: a fixture
from integration.weightctl.test_weightctl import in_terminal, n_columns
from lib import wire
from lib.cgroup import MemoryCgroup
from lib.daemon import copy_for_others
from lib.fake_server import FakeServer, later
from lib.scene import publish
from lib.wire import Refused, Wire, image

OK, FAILED, WARNED = 0, 1, 3
STRANGER = 12345
END = {"end": True}
THP = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
DAY = 86400


def run(daemon, *args, prefix=(), **kw):
    command = [*prefix, *daemon.ctl_command(("doctor", "--sync-socket", "/nonexistent/s", "--trace-socket", "/nonexistent/t", *args))]
    return subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60, **kw)


def checks(daemon, *args, **kw):
    """({check: row}, exit status); rows of the same check have the last one's."""
    done = run(daemon, "--json", *args, **kw)
    assert done.stderr == "", done.stderr
    told = json.loads(done.stdout)
    rows = {row["check"]: row for row in told["checks"]}
    states = [row["state"] for row in told["checks"]]
    assert told["state"] == next(s for s in ("error", "warning", "note", "ok") if s in states)
    assert done.returncode == {"error": FAILED, "warning": WARNED, "note": OK, "ok": OK}[told["state"]]
    for row in rows.values():
        assert row["state"] in ("ok", "note") or row["way"], f"no way out of {row}"
    return rows, done.returncode


def bound(path, text, tmp_path):
    """A command to run another one with `text` in the file at `path`."""
    (tmp_path / "bound").write_text(text)
    return "unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path / "bound"} {path} && exec "$@"', "sh"


@pytest.fixture
def with_mounts(require):
    require("mounts")


# --- The server -------------------------------------------------------------------------------------


def test_a_server_without_a_keeper_is_a_warning_and_says_so_once_at_its_start(daemon):
    rows, status = checks(daemon)
    assert (status, rows["keeper"]["state"]) == (WARNED, "warning")
    assert "the weights die with this daemon" in rows["keeper"]["found"] and "weightd --keeper" in rows["keeper"]["way"]
    assert rows["socket"] == {"check": "socket", "state": "ok", "found": daemon.socket, "way": None}
    assert rows["weightd"]["state"] == rows["memory"]["state"] == rows["gpu"]["state"] == "ok"
    assert daemon.log.count("nothing keeps the buffers") == 1


def test_all_is_well_under_a_keeper(make_daemon):
    daemon = make_daemon("--keeper")
    rows, status = checks(daemon)
    assert (status, rows["keeper"]["state"], rows["keeper"]["found"]) == (
        OK, "ok", "weightd --keeper keeps the weights over restarts")
    assert rows["store"]["found"].endswith(" descriptors") and "nothing keeps" not in daemon.log


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        yield s


def test_a_service_manager_keeps_until_it_is_gone(make_daemon, manager, tmp_path):
    daemon = make_daemon(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert checks(daemon)[0]["keeper"]["found"] == "the service manager keeps the weights over restarts"
    manager.close()
    with Wire(daemon.socket) as w:
        with pytest.raises(Refused):
            w.create("m", image([("t", 4096)]))
    rows, status = checks(daemon)
    assert (status, rows["keeper"]["state"]) == (FAILED, "error")
    assert "creates no versions" in rows["keeper"]["way"]


def test_no_socket_is_an_error_and_the_machine_is_checked_all_the_same(daemon, tmp_path):
    rows, status = checks(daemon, "--socket", tmp_path / "none")
    assert (status, rows["socket"]["found"]) == (FAILED, "no weightd answers")
    assert f"start one (weightd --socket {tmp_path}/none)" in rows["socket"]["way"]
    assert {"kernel", "descriptors", "memlock", "clock"} <= rows.keys() and "keeper" not in rows


def test_a_socket_of_a_group_refuses_a_stranger_with_the_group(daemon, require, tmp_path):
    require("root")
    tmp_path.chmod(0o711)
    os.chown(daemon.socket, 0, grp.getgrnam("games").gr_gid)
    command = [copy_for_others("weightctl", daemon.folder), "doctor", "--json"]
    done = subprocess.run(command, env=daemon.env, user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, text=True)
    row = json.loads(done.stdout)["checks"][0]
    assert (done.returncode, row["check"], row["found"]) == (FAILED, "rights", f"user {STRANGER} may not connect")
    assert "'games'" in row["way"]


def test_a_socket_for_all_users_is_a_note(make_daemon):
    row = checks(make_daemon("--socket-mode", "0666"))[0]["rights"]
    assert row["state"] == "note" and row["found"].endswith("; any user may connect") and "0660" in row["way"]


def test_a_full_store_and_a_low_limit_of_descriptors_are_warnings(make_daemon, manager, require, tmp_path):
    require("inih")
    (tmp_path / "w.conf").write_text("[store]\nmax = 16\n")
    daemon = make_daemon("--keeper", "--config", tmp_path / "w.conf")
    assert checks(daemon)[0]["store"]["state"] == "ok"
    with Wire(daemon.socket) as w:
        for i in range(3):
            publish(w, f"m{i}")
        row = checks(daemon)[0]["store"]
    assert row["state"] == "warning" and row["found"].endswith(" of 16 descriptors are kept"), row
    assert "weightctl rm" in row["way"]
    low = make_daemon(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}, prefix=("prlimit", "--nofile=1024"))
    row = checks(low)[0]["store"]
    assert row["state"] == "warning" and "LimitNOFILE=" in row["way"], row


def test_memory_that_is_short_names_the_cgroup_that_limits_it(require, make_daemon):
    require("cgroup")
    with MemoryCgroup(256 << 20) as group:
        daemon = make_daemon("--reserve", "250M", prefix=group.prefix)
        rows, status = checks(daemon)
        daemon.stop()
    assert status == WARNED and rows["memory"]["state"] == "warning", rows["memory"]
    limit = str(group.path / group.limit_name)
    assert rows["cgroup"]["found"] == f"{limit} is the limit" and f"raise {limit}, " in rows["memory"]["way"]


def test_orphans_are_a_note(daemon, require):
    with Wire(daemon.socket) as w, Wire(daemon.socket) as reader:
        publish(w)
        lease = reader.attach("m")
        reader.forget([lease.layout_fd, lease.head_fd])
        w.drop("m")
        reader.ask(wire.DETACH, lease.lease)
        row = checks(daemon)[0]["orphans"]
        reader.forget([lease.slot_fd])
    assert row["state"] == "note" and "weightctl stat" in row["way"]


def test_denied_huge_pages_are_a_warning(daemon, with_mounts, tmp_path):
    row = checks(daemon, prefix=bound(THP, "always advise never [deny] force\n", tmp_path))[0]["huge pages"]
    assert row["state"] == "warning" and THP in row["way"]
    assert checks(daemon, prefix=bound(THP, "always advise [never] deny force\n", tmp_path))[0]["huge pages"]["state"] == "ok"


def test_a_gpu_that_cannot_be_used_has_its_reason(make_daemon, gpu):
    daemon = make_daemon(env=gpu.env)
    assert checks(daemon)[0]["gpu"]["found"].startswith("1, driver for CUDA ")


def test_a_server_of_an_earlier_release_says_that_it_is(daemon, tmp_path):
    with FakeServer(tmp_path / "old.sock", features=0) as old:
        asked = later(checks, daemon, "--socket", old.path)
        peer = old.accept()
        peer.request(wire.PING)
        peer.close()
        rows, status = asked.result(60)
    assert (status, rows["health"]["found"]) == (FAILED, "is not reported")
    assert "is too old to report its health" in rows["health"]["way"]


# --- This machine -----------------------------------------------------------------------------------


def test_a_low_limit_of_descriptors_is_a_warning(daemon):
    row = checks(daemon, prefix=("prlimit", "--nofile=100"))[0]["descriptors"]
    assert (row["state"], row["found"]) == ("warning", "this process may open 100") and "ulimit -n" in row["way"]


def test_locked_memory_matters_where_there_is_rdma(daemon, with_mounts, tmp_path):
    limited = "prlimit", "--memlock=65536"
    row = checks(daemon, prefix=limited)[0]["memlock"]
    if not os.path.exists("/sys/class/infiniband"):
        assert (row["state"], row["found"]) == ("ok", "this process may lock 65.5 kB; there is no RDMA")
    (tmp_path / "infiniband").mkdir()
    seen = "unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path} /sys/class && exec "$@"', "sh"
    row = checks(daemon, prefix=(*seen, *limited))[0]["memlock"]
    assert row["state"] == "warning" and "LimitMEMLOCK=infinity" in row["way"]


def test_an_old_kernel_is_a_warning(daemon):
    row = checks(daemon, prefix=("setarch", "--uname-2.6"))[0]["kernel"]
    assert row["state"] == "warning" and row["found"].startswith("2.6.") and "Linux 6.1" in row["way"]
    assert checks(daemon)[0]["kernel"]["found"] == os.uname().release


def test_the_clock_is_as_the_kernel_has_it(daemon):
    row = checks(daemon)[0]["clock"]
    assert (row["state"], row["way"] is None) in (("ok", True), ("note", False))


# --- Services beside weightd ------------------------------------------------------------------------


def expiry(seconds):
    return [{"metric": "weightd_sync_certificate_expiry_seconds", "type": "gauge", "unit": "seconds", "help": "",
             "samples": [{"labels": {}, "value_ns": int((time.time() + seconds) * 1e9)}]}, END]


NODES = [{"kind": "node", "node": "a", "state": "self"}, {"kind": "node", "node": "b", "state": "up"}, END]


@pytest.mark.parametrize("left, state, found", [(-DAY, "error", "expired: other nodes refuse this one"),
                                                (3.5 * DAY, "warning", "expires in 3 days"),
                                                (90.5 * DAY, "ok", "valid for 90 days")])
def test_the_end_of_a_certificate(daemon, make_agent, left, state, found):  # noqa: F811
    agent = make_agent(nodes=NODES, metrics=expiry(left))
    rows, _ = checks(daemon, "--sync-socket", agent.path)
    assert (rows["certificate"]["state"], rows["certificate"]["found"]) == (state, found)
    assert state == "ok" or "weightctl pki node" in rows["certificate"]["way"]
    assert rows["nodes"]["found"] == "1 of 1 other nodes are up"


def test_a_node_that_is_down_has_its_reason(daemon, make_agent):  # noqa: F811
    down = [NODES[0], NODES[1] | {"state": "down", "why": "b: its certificate expired on 2026-01-01"}, END]
    row = checks(daemon, "--sync-socket", make_agent(nodes=down, metrics=expiry(90 * DAY)).path)[0]["nodes"]
    assert row == {"check": "nodes", "state": "warning", "found": "1 of 1 other nodes are down",
                   "way": "b: its certificate expired on 2026-01-01"}


def test_a_service_that_refuses_is_a_warning_with_its_sentence(daemon, make_agent):  # noqa: F811
    refusal = [{"end": True, "code": "request", "error": "this one is asleep"}]
    agent = make_agent(nodes=refusal, metrics=refusal)
    rows, status = checks(daemon, "--sync-socket", agent.path, "--trace-socket", agent.path)
    assert status == WARNED
    assert rows["sync agent"] == {"check": "sync agent", "state": "warning", "found": "does not reply", "way": "this one is asleep"}
    assert rows["tracer"] == {"check": "tracer", "state": "warning", "found": "does not reply", "way": "this one is asleep"}


def test_an_agent_that_should_run_and_does_not(daemon, with_mounts, tmp_path):
    (tmp_path / "sync.conf").touch()
    seen = "unshare", "--mount", "sh", "-c", (f'mount -t tmpfs none /etc && mkdir /etc/weightd && '
                                              f'cp {tmp_path}/sync.conf /etc/weightd && exec "$@"'), "sh"
    row = checks(daemon, prefix=seen)[0]["sync agent"]
    assert (row["state"], row["found"]) == ("warning", "does not run") and "systemctl enable --now weightd-sync" in row["way"]


# --- The form ---------------------------------------------------------------------------------------


def test_text_fits_80_columns_and_the_table_comes_first(make_daemon, make_agent):  # noqa: F811
    daemon = make_daemon("--socket-mode", "0666")
    agent = make_agent(nodes=NODES, metrics=expiry(-1))
    status, text = in_terminal(daemon, "doctor", "--sync-socket", agent.path, prefix=("prlimit", "--nofile=100"))
    assert status == FAILED
    assert [line for line in text.splitlines() if n_columns(line) > 80] == []
    table, *ways = text.replace("\r", "").split("\n\n")
    assert table.split()[:3] == ["CHECK", "STATE", "FOUND"]
    named = [line.split("  ")[0].strip() for line in table.splitlines() if " error " in line or " warning " in line]
    assert {way.partition(":")[0] for way in ways} >= {"rights", "keeper", "certificate", "descriptors"} and named


def test_columns_and_arguments(daemon):
    done = run(daemon, "--noheadings", "-o", "check,state")
    assert ("keeper", "warning") in {tuple(line.split()) for line in done.stdout.splitlines()}
    done = run(daemon, "x")
    assert done.returncode == 2 and "'doctor' takes no arguments" in done.stderr
