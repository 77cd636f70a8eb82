"""
Requests and verbs by several users on a buffer, a writer, a lease or a job of another user: what each of them sees,
may do and pays, as weightd really answers. test_matrix.py compares the tables with weightd.conf(5).
"""
import contextlib
import errno
import os
import signal
import subprocess
from typing import Callable, NamedTuple

from integration.server.test_images import OFFSET, layout
from lib import wire
from lib.wire import PAGE, Refused

OWNER, MEMBER, OTHER, ADMIN = 12345, 12346, 12347, 12348
GROUP, STAFF = 23456, 23457
CONF = f"[server]\nsocket-mode = 0666\nadmin-group = {STAFF}\n[names]\nreserved/* = {OWNER}\n"
LAYOUT = layout(PAGE)


class Case(NamedTuple):
    """Objects of the owner, and the places of weightctl and its files."""
    name: str
    buffer: int = 0
    writer: int = 0  # unpublished
    lease: int = 0
    job: int = 0
    token: bytes = b""
    tools: str = ""
    folder: str = ""


# --- The owner's part -------------------------------------------------------------------------------


def publish(w, name, **kw):
    slot = w.create_image(name, LAYOUT, OFFSET, **kw)
    w.publish(slot.writer, wire.fill_image(slot, b"data"))
    w.detach(slot.writer)
    return slot.writer


def make_buffer(w, case, mode):
    """Two versions."""
    case = make_leased(w, case, mode)
    w.detach(case.lease)
    return case


def make_leased(w, case, mode):
    """Two versions, and a lease on the second."""
    for _ in range(2):
        publish(w, case.name, mode=mode)
    lease = w.attach(case.name)
    return case._replace(buffer=lease.buffer, lease=lease.lease)


def make_written(w, case, mode):
    """A writer of a third version as well."""
    case = make_leased(w, case, mode)
    return case._replace(writer=w.create_image(case.name, LAYOUT, OFFSET).writer)


def make_resumable(w, case, mode):
    """A version whose writer has lost its connection."""
    writer = publish(w, case.name, mode=mode)
    return case._replace(writer=writer)


def make_loaded(w, case, mode):
    """By weightctl, with a file beside the weights."""
    weightctl(case, "load", "--quiet", "--mode", f"{mode:o}", case.name, f"{case.folder}/model")
    return case


def make_job(w, case, mode):
    token = w.create_job(case.name, n_ranks=2)
    return case._replace(token=token, job=w.join(case.name, token).job)


def make_holder(w, case, mode):
    """A lease on a version of an administrator, who removes it then: see Stage.made()."""
    return case._replace(lease=w.attach(case.name).lease)


def make_nothing(w, case, mode):
    return case


def publish_for_all(w, c):
    publish(w, c.name, mode=0o644)


def clean_up(w, c):
    for drop in w.drop, w.remove_job:
        for name in c.name, f"reserved/{c.name}":
            with contextlib.suppress(Refused):
                drop(name)


# --- The acts: each returns, or raises Refused; False: it does not see what there is ------------------


class Row(NamedTuple):
    label: str
    ops: tuple  # that it stands for
    act: Callable
    make: Callable = make_buffer


def create(w, name, **kw):
    slot = w.create_image(name, LAYOUT, OFFSET, **kw)
    w.set_files(slot.writer, b"files")
    w.publish(slot.writer, wire.fill_image(slot, b"more"))


def sees_event(w, name):
    after = 0
    try:
        while True:
            found, after = w.events(after)
            if any(e.name == name for e in found):
                return True
    except Refused as e:
        assert e.errno == errno.ETIMEDOUT, e
    return False


def lists(kind, field, value):
    """An act that looks for a record in a list of weightd's."""
    return lambda w, c: any(getattr(row, field) == value(c) for row in w.list(kind))


def of_owner(c):
    return OWNER


def join(w, c):
    w.join(c.name, c.token, rank=1)


def hello_attach(w, c):
    with wire.Wire(w.socket.getpeername(), greet=False) as another:
        another.hello_attach(c.name, features=wire.IMAGES)


REQUESTS = [
    Row("HELLO", (wire.HELLO,), lambda w, c: None, make_nothing),
    Row("PING", (wire.PING,), lambda w, c: w.ping(), make_nothing),
    Row("STAT", (wire.STAT,), lambda w, c: w.stat(), make_nothing),
    Row("NUMA", (wire.NUMA,), lambda w, c: w.numa(wire.DEFAULT), make_nothing),
    Row("LIST devices", (wire.LIST,), lambda w, c: w.list(wire.DEVICES), make_nothing),
    Row("CREATE of a new name", (wire.CREATE,), lambda w, c: w.create(c.name, LAYOUT), make_nothing),
    Row("CREATE of a reserved name", (wire.CREATE,), lambda w, c: w.create(f"reserved/{c.name}", LAYOUT), make_nothing),
    Row("LIST buffers", (wire.LIST,), lists(wire.BUFFERS, "name", lambda c: c.name)),
    Row("LIST slots", (wire.LIST,), lists(wire.SLOTS, "name", lambda c: c.name)),
    Row("EVENTS", (wire.EVENTS,), lambda w, c: sees_event(w, c.name)),
    Row("LIST versions", (wire.LIST,), lambda w, c: w.list(wire.VERSIONS, c.name)),
    Row("LIST history", (wire.LIST,), lambda w, c: w.list(wire.HISTORY, c.name)),
    Row("ATTACH", (wire.ATTACH, wire.DETACH), lambda w, c: w.detach(w.attach(c.name).lease)),
    Row("HELLO_ATTACH", (wire.HELLO_ATTACH,), hello_attach),
    Row("ATTACH of owner", (wire.ATTACH,), lambda w, c: w.attach(c.name, owner=OWNER)),
    Row("ATTACH of other", (wire.ATTACH,), lambda w, c: w.attach(c.name, owner=OTHER)),
    Row("PROOF", (wire.PROOF,), lambda w, c: w.proof(w.attach(c.name).lease)),
    Row("PAUSE", (wire.PAUSE,), lambda w, c: w.pause(w.attach(c.name).lease, 0)),
    Row("RENEW", (wire.RENEW,), lambda w, c: w.renew(c.buffer, 2)),
    Row("WAIT", (wire.WAIT,), lambda w, c: w.wait(c.name, timeout_ms=0)),
    Row("FILES", (wire.FILES,), lambda w, c: w.files(c.name), make_loaded),
    Row("LAYOUT", (wire.LAYOUT,), lambda w, c: w.layout(c.name)),
    Row("CREATE", (wire.CREATE,), lambda w, c: w.create(c.name, LAYOUT, flags=wire.NEW_LAYOUT)),
    Row("CREATE_IMAGE", (wire.CREATE_IMAGE, wire.SET_FILES, wire.PUBLISH), lambda w, c: create(w, c.name)),
    Row("CREATE_OWNED", (wire.CREATE_OWNED,), lambda w, c: w.create(c.name, LAYOUT, owner=OWNER, flags=wire.NEW_LAYOUT)),
    Row("CREATE_IMAGE_OWNED", (wire.CREATE_IMAGE_OWNED,), lambda w, c: create(w, c.name, owner=OWNER)),
    Row("CREATE_OWNED replace", (wire.CREATE_IMAGE_OWNED,), lambda w, c: create(w, c.name, owner=OWNER, flags=wire.REPLACE)),
    Row("CREATE_OWNED evict", (wire.CREATE_IMAGE_OWNED,),
        lambda w, c: create(w, c.name, owner=OWNER, flags=wire.REPLACE, policy=wire.EVICT), make_leased),
    Row("ROLLBACK", (wire.ROLLBACK,), lambda w, c: w.rollback(c.name)),
    Row("ACCESS mode", (wire.ACCESS,), lambda w, c: w.access(c.name, mode=0o666)),
    Row("ACCESS group", (wire.ACCESS,), lambda w, c: w.access(c.name, gid=GROUP)),
    Row("ACCESS owner", (wire.ACCESS,), lambda w, c: w.access(c.name, uid=OTHER)),
    Row("DROP", (wire.DROP,), lambda w, c: w.drop(c.name)),
    Row("DROP version", (wire.DROP,), lambda w, c: w.drop(c.name, 1)),
    Row("PUBLISH*", (wire.PUBLISH,), lambda w, c: w.publish(c.writer), make_written),
    Row("PUBLISH_SHARED*", (wire.PUBLISH_SHARED,), lambda w, c: w.publish_shared(c.writer, c.lease), make_written),
    Row("PROVIDE*", (wire.PROVIDE,), lambda w, c: w.provide(c.writer, 1), make_written),
    Row("ABORT*", (wire.ABORT,), lambda w, c: w.abort(c.writer), make_written),
    Row("SET_FILES*", (wire.SET_FILES,), lambda w, c: w.set_files(c.writer, b"files"), make_written),
    Row("RESUME", (wire.RESUME,), lambda w, c: w.resume(c.writer), make_resumable),
    Row("RESUME*", (wire.RESUME,), lambda w, c: w.resume(c.writer), make_written),
    Row("DETACH*", (wire.DETACH,), lambda w, c: w.detach(c.lease), make_written),
    Row("PROOF*", (wire.PROOF,), lambda w, c: w.proof(c.lease), make_written),
    Row("PAUSE*", (wire.PAUSE,), lambda w, c: w.pause(c.lease, 0), make_written),
    Row("LIST users", (wire.LIST,), lists(wire.USERS, "uid", of_owner), make_nothing),
    Row("LIST costs", (wire.LIST,), lists(wire.COSTS, "uid", of_owner), make_nothing),
    Row("LIST holders", (wire.LIST,), lists(wire.HOLDERS, "uid", of_owner), make_holder),
    Row("LIST health", (wire.LIST,), lambda w, c: w.list(wire.HEALTH), make_nothing),
    Row("LIST jobs", (wire.LIST,), lambda w, c: bool(w.job(c.name)), make_job),
    Row("JOB_VIEW", (wire.JOB_VIEW,), lambda w, c: w.view_job(c.name), make_job),
    Row("JOB_CREATE", (wire.JOB_CREATE,), lambda w, c: w.create_job(c.name, 2, token=c.token), make_job),
    Row("JOB_CREATE of a reserved name", (wire.JOB_CREATE,), lambda w, c: w.create_job(f"reserved/{c.name}"), make_nothing),
    Row("JOB_JOIN", (wire.JOB_JOIN,), join, make_job),
    Row("JOB_DESCRIPTION", (wire.JOB_DESCRIPTION,), lambda w, c: w.job_description(c.name, c.token), make_job),
    Row("JOB_REMOVE", (wire.JOB_REMOVE,), lambda w, c: w.remove_job(c.name), make_job),
    Row("JOB_PART*", (wire.JOB_PART,), lambda w, c: w.part(c.job), make_job),
    Row("JOB_LEAVE*", (wire.JOB_LEAVE,), lambda w, c: w.leave(c.job), make_job),
]


# --- Verbs: weightctl by that user --------------------------------------------------------------------


def weightctl(c, *args):
    """Its output. Refused, with the errno that its sentence stands for."""
    env = dict(os.environ, XDG_RUNTIME_DIR=c.folder)
    done = subprocess.run([f"{c.tools}/weightctl", *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=wire.PATIENCE_S, cwd="/")
    if done.returncode == 0:
        return done.stdout
    if "is no training job" in done.stderr:  # it was read, and is none
        return ""
    for code, words in (errno.EACCES, "may not"), (errno.EPERM, "only an administrator"), (errno.EPERM, "cannot own"), \
            (errno.EPERM, "belongs to uid"):
        if words in done.stderr:
            raise Refused(code, done.stderr)
    raise AssertionError(f"weightctl {args} ended with {done.returncode}: {done.stderr}")


def export(w, c):
    """Ends with its directory."""
    args = [f"{c.tools}/weightctl", "export", "--hold", c.name, f"{c.folder}/export-{c.name}-{os.getuid()}"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as holder:
        ready = holder.stdout.readline()
        holder.send_signal(signal.SIGTERM)
        said = holder.stderr.read()
    if not ready:
        assert "may not read" in said, said
        raise Refused(errno.EACCES, said)


def copy(w, c):
    """Removes the copy, which is its caller's."""
    made = f"{c.name}.{os.getuid()}"
    weightctl(c, "copy", "--quiet", "--name", made, c.name)
    weightctl(c, "rm", made)


def verb(name, *args, make=make_buffer):
    """A row of a verb whose arguments are formats of a case."""
    return Row(name, (), lambda w, c: weightctl(c, *name.split(), *[a.format(c=c, uid=os.getuid()) for a in args]), make)


def verb_showing(label, *args, what="{c.name}", make=make_buffer):
    """A row of a verb that lists what its user may see."""
    return Row(label, (), lambda w, c: what.format(c=c) in weightctl(c, *args), make)


VERBS = [
    verb("ping", make=make_nothing),
    verb("devices", make=make_nothing),
    verb("train metrics", make=make_nothing),
    verb_showing("ls", "ls", "--json"),
    verb_showing("stat", "stat", "--json"),
    verb_showing("stat --users", "stat", "--users", "--json", what=str(OWNER), make=make_nothing),
    verb_showing("metrics", "metrics"),
    verb("show", "{c.name}"),
    verb("history", "{c.name}"),
    verb("tensors", "{c.name}"),
    verb("files", "{c.name}", make=make_loaded),
    verb("cat", "{c.name}", "t"),
    verb("verify", "{c.name}"),
    verb("diff", "{c.name}", "{c.name}@1"),
    verb("save", "--quiet", "{c.name}", "{c.folder}/save-{c.name}-{uid}"),
    Row("copy", (), copy),
    verb("wait", "{c.name}"),
    verb("exec", "{c.name}", "--", "true"),
    Row("export", (), export),
    verb("load", "--quiet", "{c.name}", "{c.folder}/model"),
    verb("load", "--quiet", "--owner", str(OWNER), "{c.name}", "{c.folder}/model")._replace(label="load --owner"),
    verb("rollback", "{c.name}"),
    verb("chmod", "0666", "{c.name}"),
    verb("chown", str(OTHER), "{c.name}"),
    verb("rm", "{c.name}"),
    verb("rm", "{c.name}@1")._replace(label="rm @1"),
    verb_showing("ls (jobs)", "ls", "--json", make=make_job),
    verb("train status", "{c.name}", make=make_job),
]
# Verbs without a row, and the row of their requests.
ELSEWHERE = {"watch": "EVENTS", "doctor": "LIST health", "train run": "JOB_CREATE", "train profile": "JOB_CREATE"}


# --- Costs: charges of the user that asks and of the owner, while the connection is there ---------------


def hold(w, c):
    """The first version exists for this reader alone."""
    w.attach(c.name, version=1)
    w.drop(c.name, 1)



COSTS = [
    Row("ATTACH", (), lambda w, c: w.attach(c.name)),
    Row("WAIT, EVENTS", (), lambda w, c: w.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(c.name.encode(), b"", 9, -1))),
    Row("CREATE new", (), lambda w, c: w.create(f"{c.name}.new", LAYOUT), make_nothing),
    Row("CREATE_OWNED", (), lambda w, c: w.create_image(c.name, LAYOUT, OFFSET, owner=OWNER)),
    Row("PUBLISH", (), lambda w, c: create(w, c.name, owner=OWNER)),
    Row("DROP version", (), hold),
    Row("JOB_JOIN", (), lambda w, c: make_job(w, c, 0), make_nothing),
    Row("ACCESS owner", (), lambda w, c: w.access(c.name, uid=os.getuid())),
]

CLEAN_UP = len(REQUESTS + VERBS + COSTS)
PUBLISH_FOR_ALL = CLEAN_UP + 1
ROWS = [*REQUESTS, *VERBS, *COSTS, Row("", (), clean_up), Row("", (), publish_for_all)]
