"""
Clients that send random requests, at once, and close at any moment. No request
may hurt weightd, and nothing is left of them in the end. Sanitizers see more in it than the test itself.
"""
import errno
import random
import select

import pytest
from lib import wire
from lib.scene import LAYOUT, PAGE, Scene
from lib.wire import BODIES, EVICT, EXCLUSIVE, NEW_LAYOUT, REPLACE, REUSABLE, Refused, image

N_STEPS = 3000
NAMES = [b"plain", b"exclusive", b"reusable"]
FLAGS = {b"plain": 0, b"exclusive": EXCLUSIVE, b"reusable": REUSABLE}
LAYOUTS = LAYOUT, LAYOUT, LAYOUT, image([("t", 3 * PAGE)])
MAY_BE_REFUSED = {errno.ENOENT, errno.EBUSY, errno.EAGAIN, errno.EUCLEAN, errno.ESTALE, errno.ETIMEDOUT, errno.ENODATA,
                  errno.EPROTOTYPE, errno.EINVAL, errno.EDQUOT}


class Client:
    """One request at a time; what it was given it remembers, and most of the time it asks for that."""

    def __init__(self, scene, chance):
        self.wire, self.chance = scene.connect(), chance
        self.asked = None
        self.ids, self.writers, self.mappings = [1], [1], []

    def ask(self):
        chance, name, w = self.chance, self.chance.choice(NAMES), self.wire
        timeout = chance.choice((-1, 0, 1, 5))
        op = chance.choice((wire.CREATE, wire.CREATE, wire.PUBLISH, wire.PUBLISH, wire.ABORT, wire.ATTACH, wire.ATTACH,
                            wire.ATTACH, wire.DETACH, wire.DETACH, wire.WAIT, wire.LIST, wire.DROP, wire.RESUME, wire.RENEW,
                            wire.ROLLBACK, wire.ACCESS, wire.PAUSE, wire.PAUSE, wire.PAUSE, wire.EVENTS, wire.STAT))
        version = chance.choice((0, 0, 0, 1, 2, 5))
        self.asked = op
        if op == wire.CREATE:
            flags = FLAGS[name] * (chance.random() < .8) | REPLACE * (chance.random() < .3 and name != b"exclusive") | \
                NEW_LAYOUT * (chance.random() < .5)
            w.send_create(name, chance.choice(LAYOUTS), flags=flags, timeout_ms=timeout, policy=chance.choice((0, EVICT)),
                          keep=chance.choice((0, 1, 3)))
            return
        body = {
            wire.PUBLISH: lambda: (chance.choice(self.writers), 0, 0, b""),
            wire.ABORT: lambda: (chance.choice(self.writers),),
            wire.ATTACH: lambda: (name, b"", version, 0, 0, 0, b""),
            wire.DETACH: lambda: (chance.choice(self.ids),),
            wire.WAIT: lambda: (name, b"", chance.choice((0, 1, 10)), timeout),
            wire.LIST: lambda: (name, b"", 0, chance.randint(1, 5), 0),
            wire.DROP: lambda: (name, b"", chance.choice((0, *range(1, 20)))),
            wire.RESUME: lambda: (chance.choice(self.writers),),
            wire.RENEW: lambda: (chance.choice(self.ids), chance.randint(1, 5)),
            wire.ROLLBACK: lambda: (name, b"", version),
            wire.ACCESS: lambda: (name, b"", wire.MODE, chance.choice((0o600, 0o644)), 0, 0),
            wire.PAUSE: lambda: (chance.choice(self.ids), timeout),
            wire.EVENTS: lambda: (chance.choice((0, wire.FROM_NOW_ON)), timeout),
            wire.STAT: lambda: (),
        }[op]()
        w.send(op, BODIES[op].pack(*body))

    def hear(self):
        """Takes its answer, if there is one."""
        op, w = self.asked, self.wire
        if not op or not select.select([w.socket], [], [], 0)[0]:
            return
        self.asked = None
        try:
            reply = w.answer(op)
        except Refused as e:
            assert e.errno in MAY_BE_REFUSED, e
            return
        if op == wire.CREATE:
            slot = w.slot(reply)
            self.writers.append(slot.writer)
            self.ids += slot.writer, slot.buffer
            if self.chance.random() < .3:
                self.mappings.append(slot.map())
        elif op == wire.ATTACH and self.chance.random() < .5:
            lease = wire.Lease(*wire.struct.unpack_from("<5QII", reply.body), *reply.fds)
            self.ids += lease.lease, lease.buffer
            self.mappings.append(lease.map())
        elif op == wire.ATTACH:
            self.ids.append(wire.struct.unpack_from("<Q", reply.body)[0])
        w.forget(reply.fds)
        if self.chance.random() < .3:
            self.leave_mappings()

    def leave_mappings(self):
        while self.mappings:
            self.mappings.pop().close()

    def hang_up(self):
        self.wire.close()
        self.leave_mappings()


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_clients_leaves_nothing_behind(daemon, seed):
    chance = random.Random(seed)
    with Scene(daemon) as scene:
        clients = [Client(scene, chance) for _ in range(8)]
        for _ in range(N_STEPS):
            i = chance.randrange(len(clients))
            client = clients[i]
            client.hear()
            if not client.asked:
                client.ask()
            elif chance.random() < .15:
                client.hang_up()
                clients[i] = Client(scene, chance)
            if chance.random() < .1:
                scene.watcher.ping()
        for client in clients:
            client.hang_up()
