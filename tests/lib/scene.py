"""
Several connections to one weightd, all of this process or of forks of it, and the proof that in the end
nothing is left of what they did: no memory, no charge.
"""
import errno
import os
import signal

from lib import wire
from lib.child import run_as
from lib.wire import Wire, image, until

PAGE = wire.PAGE
LAYOUT = image([("t", PAGE)])
SLOT = 2 * PAGE  # bytes of a slot of LAYOUT: the page of bytes, and the one of their digest

NOTHING = dict.fromkeys(wire.CHARGES, 0)


class Scene:
    """
    with Scene(daemon) as scene:
        reader, writer = scene.connect(2)

    At the end of the block all connections are closed and all buffers removed, and every charge must have
    been given back to exactly zero.
    """

    def __init__(self, daemon):
        self.daemon = daemon
        self.wires = []
        self.watcher = self.connect()
        self.seen = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for w in self.wires:
            w.close()
        if not kind:
            self.clean_up()

    def connect(self, n=None):
        """A connection, or `n` of them."""
        if n is not None:
            return [self.connect() for _ in range(n)]
        self.wires.append(Wire(self.daemon.socket))
        return self.wires[-1]

    def run_as(self, user, act, *args, group=None, groups=(), features=0, **kw):
        """Returns or raises the result of act(wire, ...) over a connection of that user."""
        def connected():
            with Wire(self.daemon.socket, features=features) as w:
                return act(w, *args, **kw)

        return run_as(user, connected, gid=group, groups=groups)

    def restart(self):
        """Kills a weightd that has a keeper. All connections but a new watcher are closed; their descriptors stay."""
        os.kill(self.watcher.ping().pid, signal.SIGKILL)
        for w in self.wires:
            w.socket.close()
        self.watcher = self.connect()
        self.seen = 0

    def clean_up(self):
        with Wire(self.daemon.socket) as w:
            for name in w.names():
                try:
                    w.drop(name)
                except wire.Refused as e:
                    assert e.errno == errno.ENOENT, e  # it was held by its writer alone, which has ended
            until(lambda: ledger(w) == {os.geteuid(): NOTHING | {"connections": 1}}, lambda: f"all is given back: {ledger(w)}")
            left = w.stat()
            assert left[1:6] == (0,) * 5, left

    def settle(self):
        """Returns when weightd has done what it was asked for until now, as far as it need not wait."""
        for _ in range(3):
            self.watcher.ping()

    def is_silent(self, w):
        """True if a request of `w` has no answer although all threads that could send one are idle."""
        self.settle()
        return w.is_silent()

    def events(self, name=None):
        """The events since the last call: (event, version), or whole records of one event."""
        found = []
        while True:
            try:
                more, self.seen = self.watcher.events(self.seen)
            except wire.Refused:
                break
            found += more
        if name:
            return [e for e in found if e.event == wire.EVENTS_BY_NAME[name]]
        names = {number: n for n, number in wire.EVENTS_BY_NAME.items()}
        return [(names[e.event], e.version) for e in found]

    def slots(self, *fields):
        """The records of all slots; of several fields of each."""
        found = self.watcher.list(wire.SLOTS)
        return [tuple(getattr(s, f) for f in fields) for s in found] if fields else found

    def state(self, name="m"):
        """Version and state of a buffer."""
        found = self.watcher.records()[name]
        return found.version, found.state


def n_requests(w, uid):
    """Requests of that user which weightd has begun, that of this call included."""
    return next((cost.n_requests for cost in w.list(wire.COSTS) if cost.uid == uid), 0)


def ledger(w):
    """The charges of each user, by uid."""
    return {u.uid: {c: getattr(u, f"used_{c}") for c in wire.CHARGES} for u in w.list(wire.USERS)}


def publish(w, name="m", pattern=b"data", layout=LAYOUT, **kw):
    """Publishes and lets go of everything. The version."""
    slot = w.create(name, layout, **kw)
    return finish(w, slot, pattern)


def finish(w, slot, pattern=b"data"):
    """Fills and publishes what was created, and lets go of everything. The version."""
    version = w.publish(slot.writer, wire.fill(slot, pattern))
    w.detach(slot.writer)
    return version


def refusal(act, *args, **kw):
    """The errno with which something is refused."""
    try:
        act(*args, **kw)
    except wire.Refused as e:
        return e.errno
    raise AssertionError(f"{act.__name__} was not refused")


def repeated(pattern, size=PAGE):
    """The bytes that wire.fill() writes."""
    return (pattern * (size // len(pattern) + 1))[:size]
