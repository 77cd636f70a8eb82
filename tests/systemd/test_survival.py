"""Weights survive restarts, under 300 clients that connect and close, and readers that stay."""
import contextlib
import shutil
from typing import Callable, NamedTuple

import pytest
from systemd import weights
from systemd.crowd import Reader, Visitors
from systemd.weights import SERVICE

SIZE = 256 * 1024
BINARY = "/usr/sbin/weightd"


def signalled(number):
    def send(box):
        box.run("kill", f"-{number}", weights.main_pid(box))
    return send


def systemctl(*args):
    def call(box):
        box.run("systemctl", *args)
    return call


def hangs(box):
    """Stopped, so that it cannot report that it lives."""
    with box.expect(f"{SERVICE}: Watchdog timeout"):
        signalled("STOP")(box)


def is_replaced(box):
    """As a package does: by another file of that name."""
    path = box.path(BINARY)
    before = path.stat().st_ino
    shutil.copyfile(path, f"{path}.new")
    path.with_name("weightd.new").chmod(0o755)
    path.with_name("weightd.new").rename(path)
    box.run("systemctl", "restart", SERVICE)
    assert box.path(f"/proc/{weights.main_pid(box)}/exe").stat().st_ino == path.stat().st_ino != before


def cannot_start_for_a_while(box):
    path = box.path(BINARY)
    path.chmod(0o644)
    with box.expect(r"status=203/EXEC(?s:.*)status=203/EXEC"):
        signalled("KILL")(box)
    path.chmod(0o755)


class Way(NamedTuple):
    happens: Callable
    restarts: bool = True  # the daemon
    drop_in: str = ""  # drop-in of the service
    hangs: bool = False  # on a loaded machine for longer than the 5 s that a client gives it


WAYS = {
    "killed": Way(signalled("KILL")),
    "aborted": Way(signalled("ABRT")),
    "hung": Way(hangs, drop_in="[Service]\nWatchdogSec=3s\n", hangs=True),  # not what a loaded machine may cost
    "restart": Way(systemctl("restart", SERVICE)),
    "reload": Way(systemctl("reload", SERVICE), restarts=False),
    "daemon-reload": Way(systemctl("daemon-reload"), restarts=False),
    "daemon-reexec": Way(systemctl("daemon-reexec"), restarts=False),
    "replaced": Way(is_replaced),
    "broken": Way(cannot_start_for_a_while),
    "socket-restart": Way(systemctl("restart", "weightd.socket")),
}


# Visitors, and rounds. Those who are many come in one way, and in each where the test is long.
FEW, MANY = (60, 2), (300, 3)
CROWDS = [pytest.param(way, MANY if name == "killed" else FEW, id=name) for name, way in WAYS.items()] + \
    [pytest.param(way, MANY, id=f"{name}-many", marks=pytest.mark.long) for name, way in WAYS.items() if name != "killed"]


@pytest.mark.parametrize("way, crowd", CROWDS)
def test_weights_outlive(way, crowd, service):
    n_visitors, n_rounds = crowd
    if way.drop_in:
        service.drop_in(SERVICE, way.drop_in)
    weights.load(service, "read", SIZE, seed=1)
    weights.load(service, "read", SIZE, seed=2)
    weights.load(service, "visited", SIZE, seed=3)
    contents, kept = weights.contents(service), weights.kept(service)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Reader(service, "read", version, "bob")) for version in (1, 2, 2)]
        visitors = stack.enter_context(Visitors(service, "visited", n_visitors, "bob"))
        visitors.all_came()
        for _ in range(n_rounds):
            instance, n_passes = weights.instance(service), [r.read_on() for r in readers]
            way.happens(service)
            refused, unanswered = visitors.all_came()
            assert refused == 0, f"{visitors.said()}\n{service.journal_text()}"
            assert way.hangs or unanswered == 0, f"{visitors.said()}\n{service.journal_text()}"
            assert (weights.instance(service) != instance) == way.restarts
            assert all(r.read_on() > n for r, n in zip(readers, n_passes))
            shown = weights.show(service)
            counts = weights.readers(shown)
            assert weights.lasting(shown) == contents and weights.kept(service) == kept
            assert weights.verify(service, shown) == 3
            assert (counts["read", 1], counts["read", 2]) == (1, 2)
    assert set(weights.readers(weights.show(service)).values()) == {0}
    if not way.restarts:  # the manager may have ordered its store anew
        signalled("KILL")(service)
        assert weights.contents(service) == contents and weights.verify(service) == 3


def test_it_says_what_came_back(service):
    weights.load(service, "a", SIZE, seed=1)
    weights.load(service, "a", SIZE, seed=2)
    weights.load(service, "b", SIZE, seed=3)
    with service.expect("recovered: 2 buffers, 3 versions, 0 .* 0 descriptors quarantined"):
        service.run("systemctl", "restart", SERVICE)
    assert service.show(SERVICE, "StatusText") == "serving 2 buffers"


def test_an_orderly_end_is_no_stop(service):
    """It exits with 0, and is started again all the same."""
    weights.load(service, "a", SIZE)
    before, instance = weights.contents(service), weights.instance(service)
    with service.expect("Scheduled restart job"):
        signalled("TERM")(service)
    assert weights.contents(service) == before and weights.verify(service) == 1
    assert weights.instance(service) != instance


def test_a_new_version_after_a_restart_has_the_next_number(service):
    weights.load(service, "a", SIZE, seed=1)
    service.run("systemctl", "restart", SERVICE)
    weights.load(service, "a", SIZE, seed=2)
    service.run("systemctl", "restart", SERVICE)
    assert [v["version"] for v in weights.ask(service, "show", "a")["versions"]] == [1, 2]
    assert weights.verify(service) == 2


def test_what_was_removed_stays_removed(service):
    weights.load(service, "a", SIZE)
    weights.load(service, "b", SIZE)
    service.run("weightctl", "rm", "a")
    service.run("systemctl", "restart", SERVICE)
    assert weights.names(service) == ["b"]
    service.run("weightctl", "rm", "b")
    service.run("systemctl", "restart", SERVICE)
    assert weights.names(service) == []
    weights.wait_for_kept(service, 0)


def test_what_was_removed_stays_until_its_reader_has_gone(service):
    """Also if the reader ends while no weightd runs."""
    weights.load(service, "a", SIZE)
    reader = Reader(service, "a", 1, "bob")
    service.run("weightctl", "rm", "a")
    service.run("systemctl", "restart", SERVICE)
    reader.read_on()
    assert weights.names(service) == [] and "weightd-slot" in dict(weights.kept(service))
    service.path(BINARY).chmod(0o644)
    with service.expect("status=203/EXEC"):
        signalled("KILL")(service)
    reader.kill()
    service.path(BINARY).chmod(0o755)
    weights.wait_for_kept(service, 0)


def stops_and_starts(box):
    box.run("systemctl", "stop", SERVICE)
    box.run("systemctl", "start", SERVICE)


def test_a_stop_frees_everything_but_what_is_being_read(service):
    weights.load(service, "a", SIZE)
    with Reader(service, "a", 1, "bob") as reader:
        n = reader.read_on()
        service.run("systemctl", "stop", SERVICE)
        weights.wait_for_kept(service, 0)
        service.run("systemctl", "start", SERVICE)
        assert weights.names(service) == []
        assert reader.check(reader.ask()) > n


def systemd_version(box):
    return int(box.run("systemctl", "--version").stdout.split()[1])


def test_a_drop_in_keeps_them_also_while_it_is_stopped(service, root):
    """With systemd 254 or newer; an older one ignores it."""
    preserves = systemd_version(service) >= 254
    service.drop_in(SERVICE, (root / "packaging/systemd/preserve.conf").read_text())
    weights.load(service, "a", SIZE)
    contents = weights.contents(service)
    service.run("systemctl", "restart", SERVICE)
    assert weights.contents(service) == contents
    stops_and_starts(service)
    assert weights.contents(service) == (contents if preserves else {})
