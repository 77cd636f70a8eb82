"""weightd's own probes: their notes in its program, and their events."""
import contextlib
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest
from lib import features
from lib import usdt_notes as notes
from lib.child import Child
from lib.daemon import STOP_S, Daemon, environment
from lib.fake_agent import FakeAgent
from lib.scene import LAYOUT, finish, publish
from lib.tracing import Refused, Tracer
from lib.wire import CREATE, EVICT, EXCLUSIVE, PAGE, Wire

pytestmark = pytest.mark.probes

REGISTERS = {"x86_64": ["%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9"], "aarch64": [f"x{n}" for n in range(6)]}
ARGUMENTS = {"attach": 6, "detach": 6, "publish": 6, "flip": 4, "quiesce": 6}
NOBODY = 65534
MINE = {"pid": os.getpid(), "uid": os.getuid(), "comm": pathlib.Path("/proc/self/comm").read_text().strip()}
MANY = 10_000
PAUSE_MS = 5000  # long enough for a reader to pause, on a machine that is busy


@pytest.fixture
def tracer(tracer):
    features.require("probes")
    return tracer


# --- The program -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probes():
    features.require("sdt")
    return notes.probes(features.BUILD / "weightd")


def test_each_probe_has_its_arguments_where_a_tracer_expects_them(probes):
    registers = REGISTERS[platform.machine()]
    assert {name: p["arguments"] for name, p in probes.items()} == \
        {name: " ".join(f"8@{r}" for r in registers[:n]) for name, n in ARGUMENTS.items()}


def test_each_probe_has_a_semaphore_of_its_own_which_is_in_the_file(probes):
    program = (features.BUILD / "weightd").read_bytes()
    places = {p["semaphore"] for p in probes.values()}
    assert len(places) == len(ARGUMENTS) and all(place % 2 == 0 for place in places), probes
    assert {program[place:place + 2] for place in places} == {b"\0\0"}


# --- Events ------------------------------------------------------------------------------------------


class Observer:
    """The actions of one weightd, in a tracer's events."""

    def __init__(self, tracer, daemon):
        self.client = tracer.client()
        self.client.ask("observe")
        self.daemon = daemon

    def await_looks(self):
        """Until its tracer looks at that weightd: those of other tests may as well, meanwhile."""
        program, deadline = os.readlink(f"/proc/{self.daemon.pid}/exe"), time.monotonic() + STOP_S
        while not any((row["kind"], row.get("path"), row["on"]) == ("library", program, True)
                      for row in self.client.ask("doctor") if "on" in row):
            assert time.monotonic() < deadline, f"looked at: {program}"

    def acts(self, until):
        """The acts up to the one for which until(act) is true."""
        told = []
        while not told or not until(told[-1]):
            packet = self.client.followed.popleft() if self.client.followed else self.client.hear()
            if packet["kind"] == "act" and packet.get("weightd", {}).get("pid") == self.daemon.pid:
                told.append(packet)
        return told

    def act(self, word):
        """The next of that word."""
        return self.acts(lambda act: act["act"] == word)[-1]


def fields(act, *names):
    return {name: act[name] for name in names or ("buffer", "device", "version", "lease", *MINE)}


def await_looks(daemon, probe, wanted):
    """Until it is looked at, or not."""
    deadline = time.monotonic() + STOP_S
    while bool(notes.looks(daemon.pid, probe)) != wanted:
        assert time.monotonic() < deadline, f"looked at: {not wanted}"
        time.sleep(0.002)  # no event reports it


@pytest.fixture
def daemon():
    with contextlib.closing(Daemon("--socket-mode", "0666")) as d:
        yield d


@pytest.fixture
def told(probes, daemon, tracer):
    """An observer of a weightd that is looked at."""
    observer = Observer(tracer, daemon)
    observer.await_looks()
    return observer


def test_who_attached_what_and_when_is_told(told):
    with Wire(told.daemon.socket) as w:
        publish(w, pattern=b"one")
        publish(w, pattern=b"two")
        before = time.monotonic_ns()
        lease = w.attach("m", version=1)
        after = time.monotonic_ns()
        *_, act = told.acts(lambda act: act["act"] == "attach" and act["lease"] == lease.lease)
        assert fields(act) == {"buffer": "m", "device": "host", "version": 1, "lease": lease.lease} | MINE
        assert before < act["ns"] < after + STOP_S * 1e9 and act["took_ns"] is None and act["bytes"] == PAGE
        assert act["weightd"]["uid"] == 0
        w.detach(lease.lease)
        gone = told.act("detach")
        assert fields(gone) == fields(act)
        assert 0 < gone["held_ns"] <= gone["ns"] - before and gone["ns"] > act["ns"]


def hold(pipe, path):
    with Wire(path) as w:
        pipe.send(w.attach("m").lease)
        pipe.recv()


@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_who_ends_lets_go(told, end):
    with Wire(told.daemon.socket) as w:
        publish(w, mode=0o444)
    with Child(hold, told.daemon.socket, uid=12345) as child:
        lease = child.hear()
        *_, act = told.acts(lambda act: act["act"] == "attach" and act["lease"] == lease)
        assert (act["pid"], act["uid"], act["comm"]) == (child.pid, 12345, MINE["comm"])
        if end == "exits":
            child.say("enough")
            child.end()
        else:
            child.kill()
        gone = told.act("detach")
        assert fields(gone) == fields(act)


def test_what_is_published_is_told_with_its_writer_and_in_force(told):
    with Wire(told.daemon.socket) as w:
        for version in 1, 2:
            slot = w.create("m", LAYOUT)
            assert finish(w, slot) == version
            flip, published, attached, gone = told.acts(lambda act: act["act"] == "detach")
            assert [a["act"] for a in (flip, published, attached)] == ["flip", "publish", "attach"]
            assert fields(flip, "buffer", "device", "before", "version", *MINE) == \
                {"buffer": "m", "device": "host", "before": version - 1 or None, "version": version} | dict.fromkeys(MINE)
            assert fields(published, "buffer", "version", *MINE) == {"buffer": "m", "version": version} | MINE
            assert published["bytes"] == PAGE and published["took_ns"] > 0
            assert fields(attached) == fields(gone) == {"buffer": "m", "device": "host", "version": version,
                                                        "lease": slot.writer} | MINE


def test_a_rollback_flips(told):
    with Wire(told.daemon.socket) as w:
        publish(w)
        publish(w)
        w.rollback("m")
        told.acts(lambda act: act["act"] == "flip" and act["version"] == 2)
        assert fields(told.act("flip"), "before", "version") == {"before": 2, "version": 1}


def test_an_update_in_place_tells_whom_it_waits_for_and_who_did_not_pause(told):
    with Wire(told.daemon.socket) as pauses, Wire(told.daemon.socket) as goes_on, Wire(told.daemon.socket) as w:
        publish(w, flags=EXCLUSIVE)
        lease = pauses.attach("m")
        goes_on.attach("m")
        began = time.monotonic_ns()
        w.send_create("m", LAYOUT, timeout_ms=PAUSE_MS, policy=EVICT)
        asked = told.act("quiesce")
        pauses.send_pause(lease.lease)
        slot = w.slot(w.answer(CREATE))
        took = time.monotonic_ns() - began
        over = told.act("quiesce")
        finish(w, slot)
        assert fields(asked, "buffer", "phase", "readers", "took_ns", *MINE) == \
            {"buffer": "m", "phase": "asked", "readers": 2, "took_ns": None} | MINE
        assert fields(over, "buffer", "phase", "readers", *MINE) == {"buffer": "m", "phase": "goes-on", "readers": 1} | MINE
        assert PAUSE_MS * 1e6 <= over["took_ns"] <= took
        flip, published, *_ = told.acts(lambda act: act["act"] == "attach")
        assert (flip["before"], flip["version"], published["version"]) == (1, 2, 2)


def test_an_update_that_gives_up_tells_who_was_in_the_way(told):
    with Wire(told.daemon.socket) as reads, Wire(told.daemon.socket) as w:
        publish(w, flags=EXCLUSIVE)
        reads.attach("m")
        w.send_create("m", LAYOUT, timeout_ms=-1)
        assert told.act("quiesce")["phase"] == "asked"
        w.close()
        assert fields(told.act("quiesce"), "phase", "readers") == {"phase": "gave-up", "readers": 1}


# --- Attached readers --------------------------------------------------------------------------------


def attached(observer, w=None):
    if w:
        w.ping()  # the probe fires after weightd's answer, and before the next one
    return [row for row in observer.client.ask("attached") if row["weightd"]["pid"] == observer.daemon.pid]


def test_what_is_attached_now_is_known(told):
    with Wire(told.daemon.socket) as w:
        publish(w, mode=0o444)
        lease = w.attach("m")
        with Child(hold, told.daemon.socket, uid=12345) as child:
            other = child.hear()
            rows = {row["lease"]: row for row in attached(told, w)}
            assert set(rows) == {lease.lease, other}
            assert fields(rows[lease.lease]) == {"buffer": "m", "device": "host", "version": 1, "lease": lease.lease} | MINE
            assert (rows[other]["pid"], rows[other]["uid"], rows[other]["bytes"]) == (child.pid, 12345, PAGE)
            child.kill()
            told.acts(lambda act: act["act"] == "detach" and act["lease"] == other)
        assert [row["lease"] for row in attached(told)] == [lease.lease]
        w.detach(lease.lease)
        told.acts(lambda act: act["act"] == "detach" and act["lease"] == lease.lease)
        assert attached(told) == []


def test_that_nothing_is_attached_is_said():
    agent = FakeAgent(attached=[{"end": True}])
    command, env = [features.BUILD / "weightctl", "trace", "attached"], environment(WEIGHTD_TRACE_SOCKET=str(agent.path))
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    agent.close()
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "weightctl: nothing that was attached since weightd-trace was started is attached now\n"


def test_weightctl_shows_what_was_told(told, tracer):
    def ctl(*args):
        done = subprocess.run([features.BUILD / "weightctl", "trace", *args], env=tracer.env, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    with Wire(told.daemon.socket) as w:
        publish(w)
        lease = w.attach("m")
        told.acts(lambda act: act["act"] == "attach" and act["lease"] == lease.lease)
        ours, = [row for row in json.loads(ctl("attached", "--json"))["attached"] if row["weightd"] == told.daemon.pid]
        assert fields(ours, "buffer", "version", "device", "size", "pid", "process", "uid", "lease") == \
            {"buffer": "m", "version": 1, "device": "host", "size": PAGE, "pid": MINE["pid"], "process": MINE["comm"],
             "uid": MINE["uid"], "lease": lease.lease}
        assert abs(ours["age_ns"]) < STOP_S * 1e9
        head, *lines = ctl("attached", "-b", "-o", "BUFFER,VERSION,SIZE,PID,WEIGHTD").splitlines()
        assert ["m", "1", str(PAGE), str(os.getpid()), str(told.daemon.pid)] in [line.split() for line in lines], (head, lines)
        w.detach(lease.lease)
        told.acts(lambda act: act["act"] == "detach" and act["lease"] == lease.lease)
    what = [line.split()[1:] for line in ctl("log", "-n", "--pid", str(os.getpid()), "-o", "PID,ACT,WHAT").splitlines()]
    assert [act for act, *_ in what[-5:]] == ["publish", "attach", "detach", "attach", "detach"]
    assert what[-2][1:] == ["m@1,", "4.1", "kB,", "device", "host,", "lease", str(lease.lease)]
    assert what[-1][1:4] == ["m@1,", "held", "for"]


def test_others_are_not_told_what_is_attached(told, tracer):
    os.chmod(tracer.socket, 0o666)
    os.seteuid(12345)
    try:
        stranger = tracer.client()
    finally:
        os.seteuid(0)
    with pytest.raises(Refused, match="only root may see .*: try it with sudo"):
        stranger.ask("attached")


def test_where_nothing_is_looked_at_nothing_is_said_to_be_attached():
    features.require("trace")
    with Tracer("--meter=diag", probes=True) as tracer, pytest.raises(Refused, match="--meter=diag"):
        tracer.client().ask("attached")


# --- Observers ---------------------------------------------------------------------------------------


@pytest.mark.measures  # every tracer looks at every weightd
def test_a_tracer_looks_while_it_lives(probes, daemon):
    features.require("probes")
    for end in "closed", "killed":
        with Tracer(probes=True) as tracer:
            for probe in probes.values():
                await_looks(daemon, probe, True)
            if end == "killed":
                tracer.kill()
                for probe in probes.values():
                    await_looks(daemon, probe, False)
                tracer.start()
    for probe in probes.values():
        await_looks(daemon, probe, False)


def test_a_weightd_that_is_started_anew_is_looked_at(told, probes):
    told.daemon.kill()
    told.daemon.start()
    told.await_looks()
    with Wire(told.daemon.socket) as w:
        publish(w)
        assert told.act("attach")["pid"] == os.getpid()
        told.act("detach")
    assert attached(told) == []


def test_who_comes_back_to_a_weightd_that_was_kept_is_told_anew(probes, tracer):
    with contextlib.closing(Daemon("--keeper")) as d, Wire(d.socket) as before:
        told = Observer(tracer, before.ping())
        told.await_looks()
        publish(before)
        lease = before.attach("m")
        told.acts(lambda act: act["act"] == "attach" and act["lease"] == lease.lease)
        os.kill(told.daemon.pid, signal.SIGKILL)
        with Wire(d.socket) as after:
            told.daemon = after.ping()
            anew = after.renew(lease.buffer, lease.version)
            act = told.act("attach")
            assert fields(act) == {"buffer": "m", "device": "host", "version": 1, "lease": anew} | MINE
            assert [row["lease"] for row in told.client.ask("attached") if row["pid"] == os.getpid()] == [anew]


def test_what_is_attached_to_a_weightd_that_died_is_over(told):
    with Wire(told.daemon.socket) as w:
        publish(w)
        lease = w.attach("m")
        assert [row["lease"] for row in attached(told, w)] == [lease.lease]
        told.daemon.kill()
        assert attached(told) == []
    told.daemon.start()


@pytest.fixture
def copy():
    """copy(change): a weightd of its own, in a folder that everybody may pass through, after change(program)."""
    with tempfile.TemporaryDirectory(prefix="weightd-program-") as folder:
        os.chmod(folder, 0o711)

        def make(change=None):
            program = shutil.copy(features.BUILD / "weightd", folder)
            if change:
                change(pathlib.Path(program))
            return pathlib.Path(program)

        yield make


def test_one_that_took_anothers_place_is_looked_at(told, probes, copy):
    program = copy()
    with contextlib.closing(Daemon("--socket-mode", "0666", program=program)) as d:
        told.daemon = d
        told.await_looks()
        d.kill()
        newer = program.with_name("newer")
        shutil.copy(program, newer)
        newer.rename(program)
        d.start()
        told.await_looks()
        with Wire(d.socket) as w:
            publish(w)
            assert told.act("attach")["pid"] == os.getpid()


def test_two_rights_are_enough(probes, copy):
    features.require("probes")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+bpf,+perfmon",
            "--ambient-caps=+bpf,+perfmon"]
    with contextlib.closing(Daemon("--socket-mode", "0666", program=copy())) as d, Tracer(prefix=drop, uid=NOBODY, probes=True) as tracer:
        told = Observer(tracer, d)
        told.await_looks()
        with Wire(d.socket) as w:
            publish(w)
            assert fields(told.act("attach"), *MINE) == MINE
            assert fields(told.act("detach"), *MINE) == MINE


# --- Too much, and too little ------------------------------------------------------------------------


@pytest.mark.measures  # actions of other weightds have events, too, and their loss counts
def test_of_many_none_is_lost_or_it_is_counted(told):
    """Four threads attach and detach; their events go to one slower observer."""
    n, counts = MANY // 4, {"attach": 0, "detach": 0, "lost": 0}
    sources = set()

    def attach_all():
        with Wire(told.daemon.socket) as w:
            for _ in range(n):
                w.detach(w.attach("m").lease)

    with Wire(told.daemon.socket) as w:
        publish(w)
        told.acts(lambda act: act["act"] == "detach")
    threads = [threading.Thread(target=attach_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    while sum(counts.values()) < 2 * MANY:
        packet = told.client.hear()
        if packet["kind"] == "gap" and packet["lost"]:
            counts["lost"] += packet["lost"]
            sources.add(packet["source"])
        elif packet["kind"] == "act" and packet.get("weightd", {}).get("pid") == told.daemon.pid:
            counts[packet["act"]] += 1
    for thread in threads:
        thread.join()
    assert sum(counts.values()) == 2 * MANY and sources <= {"client", "weightd"}, (counts, sources)
    rows = attached(told)
    assert ([gap["source"] for gap in told.client.followed if gap["kind"] == "gap" and gap["lost"]] == ["attached"]) == ("weightd" in sources)
    assert rows == [] or "weightd" in sources


def test_what_the_ring_has_no_room_for_is_counted_and_said_of_what_is_attached(probes, daemon):
    features.require("probes")
    with Tracer("--ring=4K", probes=True) as tracer, Wire(daemon.socket) as w:
        told = Observer(tracer, daemon)
        told.await_looks()
        publish(w)
        attached(told, w)  # the events until now, as far as another weightd left room for them
        told.client.followed.clear()
        os.kill(tracer.proc.pid, signal.SIGSTOP)  # so that the buffer gets no room
        try:
            for _ in range(100):
                w.detach(w.attach("m").lease)
        finally:
            os.kill(tracer.proc.pid, signal.SIGCONT)
        attached(told, w)
        heard = [p for p in told.client.followed if p["kind"] == "act" and p.get("weightd", {}).get("pid") == daemon.pid]
        lost = [sum(p["lost"] or 0 for p in told.client.followed if p["kind"] == "gap" and p["source"] == source)
                for source in ("weightd", "attached")]
        assert 0 < len(heard) < 200 and min(lost) >= 200 - len(heard), (len(heard), lost)
        counted = next(row for row in told.client.ask("metrics") if row["metric"] == "weightd_trace_lost_events")
        assert {"labels": {"source": "weightd"}, "value": lost[1]} in counted["samples"], (lost, counted)


LIAR = """
#define _SDT_HAS_SEMAPHORES 1
#define STAP_SDT_ARG_CONSTRAINT r
#include <sys/sdt.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __x86_64__
#define IN(x86, arm) __asm__(x86)
#else
#define IN(x86, arm) __asm__(arm)
#endif
unsigned short weightd_attach_semaphore __attribute__((section(".probes")));
int main(int argc, char **argv)
{
	char texts[2][4] = {"lie", "\\xff"}; /* what nobody has touched yet, the kernel does not read */
	(void)argc;
	getchar();
	for (unsigned long i = 0; i < strtoul(argv[1], NULL, 10); i++) {
		register const char *name IN("rdi", "x0") = texts[0], *device IN("rsi", "x1") = texts[1];
		register unsigned long version IN("rdx", "x2") = ~0ul, lease IN("rcx", "x3") = i, who IN("r8", "x4") = 1,
			bytes IN("r9", "x5") = ~0ul;
		__asm__ volatile("" ::"r"(texts) : "memory");
		STAP_PROBE6(weightd, attach, name, device, version, lease, who, bytes);
	}
	puts("said");
	fflush(stdout);
	getchar();
}
"""


@pytest.fixture
def liar(copy):
    """liar(n): a program of another user with the name weightd; it reports n times that init attached, after it has read a line."""
    features.require("g++", "no gcc (apt-get install gcc)", bool(shutil.which("gcc")))

    def compile_to(program):
        subprocess.run(["gcc", "-O1", "-xc", "-", "-o", program], input=LIAR, text=True, check=True)

    started = []

    def start(n):
        drop = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
        started.append(subprocess.Popen([*drop, copy(compile_to), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        started[-1].path = started[-1].args[-2]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.measures  # events of others take room meanwhile, too
def test_whoever_lies_says_only_so_much_and_by_his_own_name(liar, told, probes):
    n, lies, lost = 50_000, 0, 0  # more than the limit of two seconds
    process = liar(n)
    with Wire(told.daemon.socket) as w:
        publish(w, "mine")
    doctor(told.client, process.path)
    process.stdin.write("go\n")
    process.stdin.flush()
    while lies + lost < n:
        packet = told.client.followed.popleft() if told.client.followed else told.client.hear()
        if packet["kind"] == "gap":
            lost += packet["lost"] or 0
        elif packet["kind"] == "act" and packet.get("buffer") == "lie":
            lies += 1
            assert packet["weightd"] == {"pid": process.pid, "uid": 12345} and packet["device"] is None
    assert lies > 0 and lost > n - 2 * 16384 - 1
    assert [act["act"] for act in told.client.ask("acts") if act.get("buffer") == "mine"] == \
        ["flip", "publish", "attach", "detach"], "earlier acts of others are kept"
    with Wire(told.daemon.socket) as w:
        publish(w)
        lease = w.attach("m")
        assert [row["lease"] for row in attached(told, w)] == [lease.lease]


def doctor(client, program):
    """The doctor's row of the file, once it has one."""
    deadline = time.monotonic() + STOP_S
    while not (rows := [r for r in client.ask("doctor") if r["kind"] == "library" and r["path"] == str(program)]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return rows[0]


def test_the_doctor_says_which_weightd_is_looked_at(told):
    row = doctor(told.client, features.BUILD / "weightd")
    assert (row["on"], row["functions"], row["why"]) == (True, len(ARGUMENTS), None) and row["processes"] >= 1


def test_the_doctor_says_of_one_that_was_replaced_that_it_is_not_looked_at(probes, copy):
    features.require("probes")
    program = copy()
    with contextlib.closing(Daemon(program=program)):
        program.unlink()
        with Tracer(probes=True) as tracer:
            row = doctor(tracer.client(), f"{program} (deleted)")
    assert (row["on"], row["processes"], row["why"]) == (False, 1, "its path leads to nothing here: it was replaced")


def without_probes(program):
    shutil.copy("/bin/sleep", program)


def damage(program):
    """In the length of the first note's owner."""
    data = program.read_bytes()
    at = data.index(b"stapsdt\0") - 12
    program.write_bytes(data[:at] + b"\xff" * 4 + data[at + 4:])


def move_arguments(program):
    program.write_bytes(program.read_bytes().replace(b"8@%rdi", b"8@%rbp").replace(b"8@x0", b"8@x9"))


@pytest.mark.parametrize("change, why", [
    (without_probes, "it has no probes: it is older than these, or was built without <sys/sdt.h>"),
    (damage, "it is damaged"), (move_arguments, "this weightd-trace does not support its probes")],
    ids=["older", "damaged", "newer"])
def test_the_doctor_says_why_one_is_not_looked_at(probes, tracer, copy, change, why):
    program = copy(change)
    command = [program, "60"] if change is without_probes else [program, "--socket", program.with_name("socket")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            row = doctor(tracer.client(), program)
            assert (row["on"], row["functions"], row["why"]) == (False, 0, why)
        finally:
            process.kill()
