"""weightd as a service: started by its socket, as its own user, for the members of a group."""
import json

import pytest
from systemd.weights import write_model

CAP_SYS_RESOURCE = 24
SOCKET = "/run/weightd/weightd.sock"
BYTES = bytes(range(256)) * 4096  # contents of the one tensor
READ = "import sys, weightd; sys.stdout.buffer.write(bytes(weightd.attach(sys.argv[1])['w'].numpy()))"


@pytest.fixture
def service(shared_service):
    return shared_service


def main_pid(box):
    return box.show("weightd.service", "MainPID")


def status(box, pid):
    return dict(line.split(":\t", 1) for line in box.run("cat", f"/proc/{pid}/status").stdout.splitlines())


def test_the_first_connection_starts_it(service):
    service.run("systemctl", "stop", "weightd.service")
    assert service.show("weightd.service", "ActiveState") == "inactive"
    service.run("weightctl", "ping", user="alice")
    assert service.show("weightd.service", "ActiveState") == "active"
    assert service.show("weightd.service", "StatusText") == "serving 0 buffers"


def test_it_runs_as_its_own_user_with_no_rights(service):
    service.run("weightctl", "ping")
    uid, gid = (service.run("id", f"-{what}", "weightd").stdout.strip() for what in "ug")
    now = status(service, main_pid(service))
    assert now["Uid"].split() == [uid] * 4 and now["Gid"].split() == [gid] * 4
    assert {now[cap].strip("0") for cap in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert now["NoNewPrivs"] == "1" and now["Seccomp"] == "2"
    assert int(uid) != 0


def n_files(box, pid):
    """The soft and the hard limit on descriptors."""
    limits = box.run("cat", f"/proc/{pid}/limits").stdout
    return [int(limit) for limit in limits.split("Max open files")[1].split()[:2]]


def test_the_limits_are_those_of_the_unit(service):
    """A manager without CAP_SYS_RESOURCE grants its own limit, without a warning."""
    service.run("weightctl", "ping")
    may_grant = int(status(service, 1)["CapEff"], 16) >> CAP_SYS_RESOURCE & 1
    limit = int(service.show("weightd.service", "LimitNOFILE"))
    if not may_grant:
        limit = min(limit, n_files(service, 1)[1])
    assert n_files(service, main_pid(service)) == [limit, limit]
    if may_grant:
        assert service.run("cat", f"/proc/{main_pid(service)}/oom_score_adj").stdout.strip() == \
            service.show("weightd.service", "OOMScoreAdjust")


def test_the_socket_is_for_the_group_and_stays_so(service):
    def owner():
        return service.run("stat", "-c", "%U:%G %a %F", SOCKET).stdout

    assert owner() == "root:weightd 660 socket\n"
    for unit in "weightd.service", "weightd.socket":
        service.run("systemctl", "restart", unit)
        service.run("weightctl", "ping")
        assert owner() == "root:weightd 660 socket\n", f"after a restart of {unit}"


def test_the_folder_of_the_socket_is_open_to_all_and_survives_as_a_bind_mount(service):
    assert service.run("stat", "-c", "%U:%G %a", "/run/weightd").stdout == "root:weightd 755\n"
    service.run("unshare", "--mount", "sh", "-ec", """
        mount --bind /run/weightd /mnt
        for units in weightd.service weightd.socket "weightd.service weightd.socket"; do
            systemctl restart $units
            weightctl --socket /mnt/weightd.sock ping
        done
        systemctl stop weightd.socket weightd.service
        [ ! -e /mnt/weightd.sock ]
        systemctl start weightd.socket
        weightctl --socket /mnt/weightd.sock ping""")


def test_the_socket_is_still_where_it_was_before(service):
    assert service.run("readlink", "-f", "/run/weightd.sock").stdout == f"{SOCKET}\n"
    service.run("weightctl", "--socket", "/run/weightd.sock", "ping", user="bob")


def test_a_socket_of_the_release_before_gives_way_to_the_link(service):
    service.drop_in("weightd.socket", "[Socket]\nListenSequentialPacket=\nListenSequentialPacket=/run/weightd.sock\nSymlinks=\n")
    service.run("systemctl", "restart", "weightd.socket")
    assert service.run("stat", "-c", "%F", "/run/weightd.sock").stdout == "socket\n"
    service.drop_in("weightd.socket", "")
    service.run("systemctl", "restart", "weightd.socket")
    assert service.run("readlink", "-f", "/run/weightd.sock").stdout == f"{SOCKET}\n"
    service.run("weightctl", "ping", user="alice")


def test_strangers_are_not_let_in(service):
    done = service.run("weightctl", "ping", user="mallory", check=False)
    assert done.returncode != 0 and "it is for the group 'weightd'" in done.stderr, done.stderr
    assert "start" not in done.stderr, done.stderr
    service.run("weightctl", "ping", user="bob")


def test_one_user_loads_and_another_reads(service):
    write_model(service, "/srv/m.safetensors", BYTES)
    service.run("weightctl", "load", "--quiet", "--mode", "0644", "shared", "/srv/m.safetensors", user="alice")
    assert service.run("python3", "-c", READ, "shared", user="bob", text=False).stdout == BYTES
    service.run("weightctl", "verify", "shared", user="bob")


def test_a_drop_in_lets_weightd_place_memory_on_a_numa_node(service, root):
    write_model(service, "/srv/m.safetensors", BYTES)
    load = "weightctl", "load", "--quiet", "--numa", "local", "placed", "/srv/m.safetensors"
    done = service.run(*load, user="alice", check=False)
    assert done.returncode != 0 and "forbids weightd to place memory (mbind); allow it (the drop-in numa.conf" in done.stderr, done.stderr
    service.drop_in("weightd.service", (root / "packaging/systemd/numa.conf").read_text())
    service.run("systemctl", "restart", "weightd.service")
    service.run(*load, user="alice")
    service.drop_in("weightd.service", "")
    service.run("systemctl", "restart", "weightd.service")


def test_what_a_user_keeps_to_himself_another_does_not_read(service):
    write_model(service, "/srv/p.safetensors", BYTES)
    service.run("weightctl", "load", "--quiet", "--mode", "0600", "private", "/srv/p.safetensors", user="alice")
    done = service.run("weightctl", "verify", "private", user="bob", check=False)
    assert done.returncode != 0 and "may not read 'private'" in done.stderr, done.stderr
    assert service.run("python3", "-c", READ, "private", user="alice", text=False).stdout == BYTES


HOLD = """
import signal, socket, os, weightd
lease = weightd.attach("held")
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""


def test_the_unit_and_the_slice_of_a_holder_are_shown(service):
    """weightctl looks for them: weightd sees no process of another user in /proc."""
    write_model(service, "/srv/h.safetensors", BYTES)
    service.run("weightctl", "load", "--quiet", "--mode", "0644", "held", "/srv/h.safetensors", user="alice")
    service.run("systemd-run", "--unit=holder", "--slice=readers", "--uid=bob", "--property=Type=notify", "python3", "-c", HOLD)
    service.run("weightctl", "rm", "held", user="alice")
    found, = json.loads(service.run("weightctl", "stat", "--json").stdout)["holders"]
    assert (found["holder"], found["unit"], found["slice"]) == ("bob", "holder.service", "readers.slice")
    service.run("systemctl", "stop", "holder")


def test_the_daemon_sees_no_home_and_no_network(service):
    """The unit's restrictions hold for this daemon, and are more than text."""
    service.run("weightctl", "ping")
    root = service.path(f"/proc/{main_pid(service)}")
    assert list((root / "root/home").iterdir()) == []
    interfaces = (root / "net/dev").read_text()
    assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]


def test_a_daemon_that_was_killed_is_started_anew(service):
    service.run("weightctl", "ping")
    before = main_pid(service)
    service.run("kill", "-KILL", before)
    service.run("weightctl", "ping", user="bob")
    assert main_pid(service) not in (before, "0")


def test_its_lines_reach_the_journal_with_their_level(service):
    service.run("weightctl", "ping")
    lines = service.journal("_SYSTEMD_UNIT=weightd.service", "SYSLOG_IDENTIFIER=weightd")
    level = {line["MESSAGE"]: line["PRIORITY"] for line in lines}
    assert level["listening on the socket of the service manager"] == "6", level
