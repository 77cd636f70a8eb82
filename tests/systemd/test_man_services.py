"""Examples of weightd(8) and weightd.conf(5) that need a service, run as they are printed, in one box."""
import contextlib
import random

import pytest
from integration.examples.pages import literals
from systemd import recipe, weights
from systemd.weights import SERVICE

CONF = "/etc/weightd/weightd.conf"
MODEL = "/srv/model.safetensors"
CAP_KILL = 5
SIZE = 1 << 20

# Attaches two versions, and keeps them.
HOLD = """
import signal, socket, os, weightd
leases = [weightd.attach("held", version=1), weightd.attach("held", version=2)]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""


@pytest.fixture(scope="module")
def service(shared_service):
    weights.write_model(shared_service, MODEL, random.Random(1).randbytes(SIZE))
    shared_service.path(CONF).parent.mkdir(exist_ok=True)
    shared_service.run("systemctl", "start", SERVICE)
    return shared_service


@contextlib.contextmanager
def configured(box, text):
    """A weightd that has read this file again."""
    box.path(CONF).write_text(text)
    try:
        box.run("systemctl", "reload", SERVICE)
        yield
    finally:
        box.path(CONF).unlink()
        box.run("systemctl", "reload", SERVICE)


@contextlib.contextmanager
def with_files(box, files):
    """A weightd that was started again with these files of units, {path: text}."""
    try:
        for path, text in files.items():
            box.path(path).parent.mkdir(exist_ok=True)
            box.path(path).write_text(text)
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", SERVICE)
        yield
    finally:
        for path in files:
            box.path(path).unlink()
        box.run("systemctl", "daemon-reload")
        box.run("systemctl", "restart", SERVICE)


def load(box, name, user, *args):
    """Returns the error, or None."""
    done = box.run("weightctl", "load", "--quiet", *args, name, MODEL, user=user, check=False)
    return done.stderr if done.returncode else None


def limits(box, user):
    """A user's limits of bytes, None if there is none, and of leases."""
    [row] = weights.ask(box, "stat", "--users", user=user)["users"]
    return row["memory"]["max"], row["readers"]["max"]


def test_the_example_of_the_configuration(service):
    [text] = literals("weightd.conf.5", "EXAMPLE")
    service.path(CONF).write_text(text)
    refused = service.run("weightd", "--check-config", check=False)
    service.path(CONF).unlink()
    assert refused.returncode == 2 and "'serving'" in refused.stderr and "'ops'" in refused.stderr, refused.stderr

    service.run("groupadd", "ops")
    service.run("useradd", "-G", "weightd,ops", "olga")
    service.run("useradd", "-G", "weightd", "serving")
    assert load(service, "private", "alice", "--mode", "0600") is None
    assert service.run("weightctl", "verify", "private", user="olga", check=False).returncode == 1
    _, default = limits(service, "alice")
    with configured(service, text):
        service.run("weightd", "--check-config")
        service.run("weightctl", "verify", "private", user="olga")
        assert service.run("weightctl", "verify", "private", user="serving", check=False).returncode == 1
        assert limits(service, "serving") == (None, 80000)
        assert limits(service, "alice") == (64 << 30, default)


def test_names_are_for_the_users_and_groups_of_the_example(service):
    [text] = literals("weightd.conf.5", "[NAMES]")
    service.run("groupadd", "ml")
    service.run("usermod", "-aG", "ml", "alice")
    service.run("usermod", "-aG", "staff", "bob")
    with configured(service, text):
        for name, pattern, users in (("llama/8b", "llama/*", ("alice", "root")), ("llama/base", "llama/base", ("root",)),
                                     ("scratch/x", "", ("alice", "bob", "root")), ("other", "*", ("bob", "root"))):
            for user in "alice", "bob", "root":
                error = load(service, name, user)
                assert (error is None) == (user in users), (name, user, error)
                if error is None:
                    service.run("weightctl", "rm", name, user=user)
                else:
                    assert f"'{pattern}'" in error, error


def test_with_the_drop_in_weightd_ends_readers_that_hold_too_much(service):
    [text] = literals("weightd.conf.5", "HELD MEMORY")
    service.path("/srv/hold.py").write_text(HOLD)

    def capabilities():
        return int(service.run("awk", "/^CapEff/ { print $2 }", f"/proc/{weights.main_pid(service)}/status").stdout, 16)

    assert capabilities() == 0
    with with_files(service, {f"/etc/systemd/system/{SERVICE}.d/kill.conf": text}), \
            configured(service, f"[limits]\nheld = {SIZE // 2}\nover = kill\n"):
        assert capabilities() == 1 << CAP_KILL
        for _ in range(2):
            assert load(service, "held", "root", "--mode", "0644") is None
        service.run("systemd-run", "--unit=holder", "--uid=bob", "--property=Type=notify", "python3", "/srv/hold.py")
        with service.expect("holder.service: Main process exited, code=killed, status=9/KILL"):
            service.run("weightctl", "rm", "held")
    [entry] = service.journal("WEIGHTD_ACTION=kill-reader")
    assert (entry["WEIGHTD_BUFFER"], entry["WEIGHTD_RESULT"]) == ("held", "0"), entry
    service.run("systemctl", "reset-failed", "holder.service")


def test_the_slice_has_the_service_and_its_limits(service):
    """Needs no memory controller, as test_oom.py does, where a limit is reached."""
    [block] = literals("weightd.8", "MEMORY")
    assert service.show(SERVICE, "Slice") == "system.slice"
    with with_files(service, recipe.files(block)):
        shown = [service.show("weightd.slice", key) for key in ("ActiveState", "MemoryMax", "MemorySwapMax", "CPUWeight")]
        assert shown == ["active", str(127 << 30), "0", "1000"]
        assert service.show(SERVICE, "ControlGroup") == f"/weightd.slice/{SERVICE}"


def test_the_journal_has_the_publishes_of_a_buffer(service):
    [block] = literals("weightd.8", "AUDIT")
    assert load(service, "llama-8b", "alice") is None
    assert load(service, "other", "alice") is None
    service.run("journalctl", "--sync")
    [(by_root, line)] = recipe.commands(block)
    lines = service.run("sh", "-c", line, user="root" if by_root else "bob").stdout.splitlines()
    assert len(lines) == 1 and "weightd[" in lines[0] and "llama-8b" in lines[0], lines
