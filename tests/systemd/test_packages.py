"""
Packages in a system of this machine's release: installed, upgraded, downgraded, purged.

`make check-deb` builds them with Debian's flags and has 300 clients. Here they are made of the objects of this tree.
"""
import contextlib
import os
import pathlib
import re
import subprocess

import pytest
from lib import box, features
from systemd import crowd, packages, weights
from systemd.crowd import Reader, Visitors
from systemd.weights import SERVICE

pytestmark = pytest.mark.timeout(900)
SOCKET = "weightd.socket"
SIZE = 1 << 20
PATIENCE_S = 400
VISITORS = int(os.environ.get("WEIGHTD_VISITORS", 30))
METRICS = ["weightd-metrics.service", "weightd-metrics-textfile.timer"]
USERS = ["weightd", "weightd-sync", "weightd-trace"]
# Traces that dpkg, apt and systemd keep of any package, and folders of the test.
TRACES = re.compile(r"/(var/(lib/(dpkg|apt|systemd|private)|cache/(apt|debconf|ldconfig|man|private)|log|backups|tmp)|tmp|opt/in|root|run)(/|$)"
                    r"|/etc/(passwd|group|shadow|gshadow|subuid|subgid)(-|\.lock)?$|/etc/(ld\.so\.cache|machine-id|\.pwd\.lock|\.updated)$|/var/\.updated$"
                    r"|/etc/systemd/system(/[a-z.-]+\.wants)?$|.*/__pycache__(/|$)")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return packages.built(lambda: tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def newer(built, tmp_path_factory):
    return packages.renew(built, tmp_path_factory.mktemp("newer") / "deb")


@pytest.fixture
def machine(built, newer):
    """A box with both releases in /opt/in, three users, and none of the packages."""
    with box.Box() as machine:
        # The index of all manual pages of this machine takes longer than all else.
        machine.path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
        for name, folder in ("old", built), ("new", newer):
            into = machine.path(f"/opt/in/{name}")
            into.mkdir(parents=True)
            for package in folder.glob("*.deb"):
                (into / package.name).write_bytes(package.read_bytes())
        for user in "alice", "bob", "mallory":
            machine.run("useradd", "--no-create-home", user)
        yield machine


def install(machine, name):
    """By dpkg: what the packages depend on is on this machine, and apt would read its lists for longer than all else takes."""
    return machine.run("sh", "-c", f"dpkg --install /opt/in/{name}/*.deb", timeout=PATIENCE_S)


def upper(machine):
    """Files that the box has, and this machine has not."""
    folder = pathlib.Path(f"/proc/{machine.init}/root/run/upper")
    found = set()
    for path in folder.rglob("*"):
        name = f"/{path.relative_to(folder)}"
        if not os.path.lexists(name) and not TRACES.match(name):
            found.add(name)
    return found


def users(machine):
    return machine.path("/etc/passwd").read_text().splitlines()


def lintian(built, *words):
    packages.run("lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", *words,
                 env={"PATH": packages.PATH, "HOME": str(built), "LANG": "C.UTF-8"})


def test_lintian_finds_nothing(built):
    """It starts man for each page. Those of the calls are generated alike: test_man has read them all at once."""
    changes = list(built.glob("upload/*.changes"))
    if "WEIGHTD_DEBS" in os.environ:
        lintian(built, *changes)
        return
    lintian(built, "-X", "documentation/manual", *changes)
    pages = [path for path in built.glob("upload/*.deb") if not path.name.startswith("libweightd-dev_")]
    assert len(pages) > 5
    lintian(built, "-C", "documentation/manual", *pages)


def test_each_override_has_a_reason():
    for path in (features.ROOT / "packaging/debian").glob("*.lintian-overrides"):
        assert path.read_text().startswith("# "), path


def test_packages_keep_weights_and_leave_nothing(machine, built):
    before = upper(machine)
    install(machine, "old")
    assert machine.run("systemctl", "is-enabled", SERVICE, SOCKET).stdout.split() == ["enabled"] * 2
    assert machine.run("systemctl", "is-active", SERVICE, SOCKET).stdout.split() == ["active"] * 2
    done = machine.run("systemd-analyze", "verify", SERVICE, SOCKET, "weightd-sync.service", "weightd-trace.service",
                       "weightd-export@.service", "weightd-load@.service", "weightd-models.target", *METRICS)
    assert done.stdout + done.stderr == ""
    assert machine.run("systemctl", "is-enabled", *METRICS, check=False).stdout.split() == ["disabled"] * 2
    machine.run("systemctl", "enable", "--now", *METRICS)
    for user in "alice", "bob":
        machine.run("usermod", "-aG", "weightd", user)
    for program in "visitors", "reader":
        source = machine.path(f"/opt/in/{program}.c")
        source.write_bytes((crowd.HERE / f"programs/{program}.c").read_bytes())
        machine.run("sh", "-c", f"cc -std=gnu17 -D_GNU_SOURCE -O2 -pthread /opt/in/{program}.c -o {crowd.FOLDER}/{program} "
                                "$(pkg-config --cflags --libs weightd)")

    weights.load(machine, "m", SIZE, seed=1)
    weights.load(machine, "m", SIZE, seed=2)
    refused = machine.run("weightctl", "ls", user="mallory", check=False)
    assert refused.returncode != 0 and re.search(r"may not connect .* for the group 'weightd'", refused.stderr), refused.stderr
    assert machine.run("python3", "-c", "import weightd; print(weightd.attach('m')['w'].shape)", user="bob").stdout == f"({SIZE},)\n"

    contents, socket = weights.contents(machine), machine.show(SOCKET, "ActiveEnterTimestampMonotonic")
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Reader(machine, "m", version, "bob")) for version in (1, 2)]
        visitors = stack.enter_context(Visitors(machine, "m", VISITORS, "bob"))
        visitors.all_came()
        metrics = machine.show(METRICS[0], "MainPID")
        for what, happens in {
            "kill -9": lambda: machine.run("kill", "-KILL", weights.main_pid(machine)),
            "restart": lambda: machine.run("systemctl", "restart", SERVICE),
            "daemon-reexec": lambda: machine.run("systemctl", "daemon-reexec"),
            "upgrade": lambda: install(machine, "new"),
            "downgrade": lambda: install(machine, "old"),
        }.items():
            instance, passes = weights.instance(machine), [reader.read_on() for reader in readers]
            happens()
            assert visitors.all_came() == (0, 0), f"{what}: {visitors.said()}\n{machine.journal_text()}"
            assert (weights.instance(machine) == instance) == (what == "daemon-reexec"), what
            assert all(reader.read_on() > n for reader, n in zip(readers, passes)), what
            assert weights.contents(machine) == contents and weights.verify(machine) == 2, what
            assert machine.show(SOCKET, "ActiveEnterTimestampMonotonic") == socket, what

    assert machine.show(METRICS[0], "MainPID") not in ("0", metrics)

    for user in "alice", "bob", "mallory":
        machine.run("userdel", user)
    machine.run("dpkg", "--purge", *packages.names(built), timeout=PATIENCE_S)
    left = {name for name in upper(machine) - before if not name.startswith(crowd.FOLDER)}
    assert left == set()
    run = subprocess.run(machine.command("find", "/run", "/var/lib/systemd", "-name", "*weightd*"), capture_output=True, text=True)
    assert run.stdout == ""
    assert sorted(line.split(":")[0] for line in users(machine) if "weightd" in line) == USERS
    listed = machine.run("dpkg-query", "-W", "-f", "${Package}\n").stdout.split()
    assert not set(packages.names(built)) & set(listed)
