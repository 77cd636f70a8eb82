"""weightd.conf: errors with their lines, limits of users at their exact values, administrators, reloading."""
import errno
import json
import os
import pathlib
import signal
import subprocess
import tempfile

import pytest
from lib import features, wire
from lib.child import Child, daemon_prefix, run_as
from lib.daemon import STOP_S, environment
from lib.wire import Refused, Wire, image, until

WEIGHTD = features.BUILD / "weightd"
LAYOUT = image([("t", 4096)])
PAGE = 4096
SLOT = 2 * PAGE  # bytes of a slot of LAYOUT: the page of bytes, and the one of their digest
EACH = SLOT + len(LAYOUT)  # charge for the first version of a buffer

ALICE, BOB, CAROL = 12345, 12346, 12347
STAFF = 23456


@pytest.fixture(autouse=True)
def inih_only(require):
    require("inih")


@pytest.fixture
def root_only(require):
    require("root")


@pytest.fixture
def conf(tmp_path):
    """conf(text): the path of a file with that text; the same path each time."""
    def write(text):
        path, new = tmp_path / "w.conf", tmp_path / "new.conf"
        new.write_text(text)
        new.chmod(0o644)
        return new.replace(path)

    return write


@pytest.fixture
def make_configured(make_daemon, conf):
    """A daemon with that configuration, to which every user may connect."""
    return lambda text, *args: greeted(make_daemon("--config", conf("[server]\nsocket-mode = 0666\n" + text), *args))


def run(*args, **kw):
    """A weightd that ends by itself."""
    return subprocess.run([WEIGHTD, *args], env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=STOP_S, **kw)


def greeted(daemon):
    """The daemon once it has logged its whole start: the first client may connect before that."""
    Wire(daemon.socket).close()
    return daemon


def publish(w, name, **kw):
    """Publishes and lets go of the lease that the writer becomes."""
    slot = w.create(name, LAYOUT, **kw)
    w.publish(slot.writer)
    w.detach(slot.writer)
    w.forget([slot.fd, slot.reader_fd])


def outcome(act, *args, **kw):
    """0, or the errno it was refused with."""
    try:
        act(*args, **kw)
        return 0
    except Refused as e:
        return e.errno


# --- Errors -----------------------------------------------------------------------------------------

BROKEN = """\
[server]
socket-mode = rw
sokcet = /run/w.sock

[limits]
bytes = 1G
bytes = 2G
[limit:alice]
leases = 3
[defaults]
keep = 99
"""
ERRORS = """\
weightd: {0}:2: 'socket-mode' (permission bits of the socket) does not take 'rw'; it takes octal digits up to 0777
weightd: {0}:3: [server] has no key 'sokcet'; it has socket, socket-mode, reserve, log-level, admin-group. Is 'socket' meant?
weightd: {0}:7: 'bytes' was given in line 6; give it once
weightd: {0}:8: there is no section [limit:alice]; there are [server], [store], [limits], [limits:USER], [names], [cuda] and [defaults]. Is [limits] meant?
weightd: {0}:11: 'keep' (versions that a buffer keeps by default) does not take '99'; it takes 1 to 32
"""


def test_every_error_is_told_with_its_line_and_nothing_starts(conf, tmp_path):
    path = conf(BROKEN)
    done = run("--config", path, "--socket", tmp_path / "s")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", ERRORS.format(path))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("args", [["--check-config", "{}"], ["--check-config={}"], ["--check-config", "--config", "{}"],
                                  ["--config", "{}", "--check-config"]])
def test_a_check_tells_the_same_and_starts_nothing(conf, args):
    path = conf(BROKEN)
    done = run(*[a.format(path) for a in args])
    assert (done.returncode, done.stdout, done.stderr) == (2, "", ERRORS.format(path))
    conf("[limits]\nbytes = unlimited\n[limits:0]\nbytes = 1\n")
    done = run(*[a.format(path) for a in args])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_example_is_good(conf, root):
    done = run("--check-config", conf((root / "packaging/weightd.conf").read_text()))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_named_must_be_there(tmp_path):
    for option in "--config", "--check-config":
        done = run(option, tmp_path / "none", "--socket", tmp_path / "s")
        assert done.returncode == 2
        assert done.stderr == f"weightd: cannot read {tmp_path}/none: No such file or directory\n"


def test_the_default_file_is_read_if_it_is_there(require):
    require("mounts")
    script = """
        mount -t tmpfs none /etc && "$0" --check-config && mkdir /etc/weightd &&
        echo nonsense >/etc/weightd/weightd.conf && "$0" --check-config"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, WEIGHTD], env=environment(),
                          capture_output=True, text=True, timeout=STOP_S)
    assert (done.returncode, done.stderr) == (2, "weightd: /etc/weightd/weightd.conf:1: this is no [section], no "
                                                 "'key = value' and no '# comment'\n")


@pytest.mark.parametrize("mode, why", [
    (0o646, "others than its owner may write it (chmod go-w)"), (0o664, "others than its owner may write it (chmod go-w)"),
])
def test_a_file_that_others_may_write_is_refused(conf, mode, why):
    path = conf("")
    path.chmod(mode)
    done = run("--check-config", path)
    assert (done.returncode, done.stderr) == (2, f"weightd: {path} is not read: {why}\n")


def test_a_file_of_another_user_is_refused(conf, root_only):
    path = conf("")
    os.chown(path, ALICE, ALICE)
    done = run("--check-config", path)
    assert done.returncode == 2
    assert "it belongs neither to root nor to the user of weightd (chown root)" in done.stderr


def test_the_file_of_the_user_who_weightd_is_and_that_of_root_are_read(make_daemon, root_only):
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        os.chmod(folder, 0o711)
        path = pathlib.Path(folder) / "w.conf"
        path.write_text("[limits]\nconnections = 3\n")
        for uid in 0, ALICE:
            os.chown(path, uid, uid)
            assert make_daemon("--config", path, prefix=daemon_prefix(ALICE)).proc.poll() is None


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "huge"])
def test_what_is_no_configuration_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "w.conf"
    {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"),
     "huge": lambda: path.write_text("#" * (1024 * 1024 + 1))}[kind]()
    done = run("--check-config", path)
    assert done.returncode == 2 and f"{path} is not read: " in done.stderr


# --- The command line -------------------------------------------------------------------------------


def test_the_command_line_comes_before_the_file(make_daemon, conf, tmp_path):
    path = conf(f"[server]\nsocket = {tmp_path}/elsewhere\nsocket-mode = 0600\nlog-level = error\n")
    daemon = greeted(make_daemon("--config", path, "--socket-mode", "0666", "--log-level", "info"))
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o666
    assert not (tmp_path / "elsewhere").exists() and f"listening on {daemon.socket}" in daemon.log


def test_the_file_comes_before_the_environment(conf, tmp_path):
    path = conf(f"[server]\nsocket = {tmp_path}/s\nsocket-mode = 0600\nlog-level = error\n")
    proc = subprocess.Popen([WEIGHTD, "--config", path], env=environment(WEIGHTD_SOCKET=str(tmp_path / "other")),
                            stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: proc.poll() is not None or (tmp_path / "s").exists(), "it listens")
        assert os.stat(tmp_path / "s").st_mode & 0o777 == 0o600 and not (tmp_path / "other").exists()
    finally:
        proc.terminate()
        said = proc.communicate(timeout=STOP_S)[1]
    assert (proc.returncode, said) == (0, "")


def test_the_defaults_of_a_new_buffer_are_those_of_the_file(make_configured):
    daemon = make_configured("[defaults]\nmode = 0604\nkeep = 3\n")
    with Wire(daemon.socket) as w:
        for _ in range(5):
            publish(w, "m")
        publish(w, "own", mode=0o600, keep=1)
    rows = {row["name"]: row for row in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]}
    assert (rows["m"]["mode"], rows["m"]["keep"], rows["m"]["kept"]) == ("0604", 3, 3)
    assert (rows["own"]["mode"], rows["own"]["keep"]) == ("0600", 1)


# --- Limits, as ALICE has them, and others not ------------------------------------------------------

FEW = "[limits:12345]\n"


@pytest.mark.usefixtures("root_only")
class TestLimits:
    """The limit itself is granted, one more is refused, and what is given back can be had again."""

    def test_connections(self, make_configured):
        daemon = make_configured(FEW + "connections = 3\n")

        def connect():
            wires = [Wire(daemon.socket) for _ in range(3)]
            refused = outcome(Wire, daemon.socket), outcome(Wire, daemon.socket)
            wires.pop().close()
            until(lambda: wires[0].ping().n_sessions == 2, "one is gone")
            wires.append(Wire(daemon.socket))
            return refused, outcome(Wire, daemon.socket)

        assert run_as(ALICE, connect) == ((errno.EDQUOT, errno.EDQUOT), errno.EDQUOT)
        assert run_as(BOB, lambda: len([Wire(daemon.socket) for _ in range(9)])) == 9

    def test_leases(self, make_configured):
        daemon = make_configured(FEW + "leases = 3\n")
        with Wire(daemon.socket) as w:
            publish(w, "m", mode=0o644)

        def attach():
            with Wire(daemon.socket) as first, Wire(daemon.socket) as second:
                leases = [first.attach("m"), first.attach("m"), second.attach("m")]
                refused = outcome(first.attach, "m"), outcome(second.attach, "m")
                first.detach(leases[0].lease)
                return refused, outcome(second.attach, "m"), outcome(first.attach, "m")

        assert run_as(ALICE, attach) == ((errno.EDQUOT, errno.EDQUOT), 0, errno.EDQUOT)
        assert run_as(ALICE, attach) == ((errno.EDQUOT, errno.EDQUOT), 0, errno.EDQUOT), "all was given back"

    def test_buffers(self, make_configured):
        daemon = make_configured(FEW + "buffers = 2\n")

        def create():
            with Wire(daemon.socket) as w:
                publish(w, "a")
                slot = w.create("b", LAYOUT)
                refused = outcome(w.create, "c", LAYOUT)
                w.abort(slot.writer)
                again = outcome(w.create, "c", LAYOUT), outcome(w.create, "d", LAYOUT)
                w.drop("a")
                return refused, again, outcome(w.create, "d", LAYOUT), outcome(w.create, "e", LAYOUT)

        assert run_as(ALICE, create) == (errno.EDQUOT, (0, errno.EDQUOT), 0, errno.EDQUOT)

    def test_versions(self, make_configured):
        daemon = make_configured(FEW + "versions = 2\n")

        def make():
            with Wire(daemon.socket) as w:
                publish(w, "m", keep=4)
                publish(w, "m")
                refused = outcome(w.create, "m", LAYOUT), outcome(w.create, "n", LAYOUT)
                w.drop("m", 1)
                slot = w.create("m", LAYOUT)
                counted = outcome(w.create, "n", LAYOUT)  # while it is written
                w.abort(slot.writer)
                return refused, counted, outcome(w.create, "n", LAYOUT)

        assert run_as(ALICE, make) == ((errno.EDQUOT, errno.EDQUOT), errno.EDQUOT, 0)

    @pytest.mark.parametrize("short", [0, 1])
    def test_bytes(self, make_configured, short):
        """Three slots and layouts fit exactly; with one byte less, two."""
        daemon = make_configured(FEW + f"bytes = {3 * EACH - short}\n")
        fits = 3 - short

        def create():
            with Wire(daemon.socket) as w:
                slots = [w.create(f"m{i}", LAYOUT) for i in range(fits)]
                assert {slot.slot_size for slot in slots} == {SLOT}
                refused = outcome(w.create, "more", LAYOUT)
                with slots[0].map():
                    w.abort(slots[0].writer)
                    assert w.ping().n_bytes == fits * SLOT and outcome(w.create, "held", LAYOUT) == errno.EDQUOT
                until(lambda: w.ping().n_bytes == (fits - 1) * SLOT, "its memory is free")
                return refused, outcome(w.create, "again", LAYOUT), outcome(w.create, "more", LAYOUT)

        for _ in range(2):
            assert run_as(ALICE, create) == (errno.EDQUOT, 0, errno.EDQUOT)
            with Wire(daemon.socket) as w:
                until(lambda: w.ping().n_bytes == 0, "all is freed")
        assert run_as(BOB, lambda: outcome(Wire(daemon.socket).create, "big", image([("t", 1 << 20)]))) == 0

    @pytest.mark.parametrize("short", [0, 1])
    def test_descriptors(self, make_configured, short):
        """Two for a buffer, one for its layout, one for each version: nine are two buffers and a version."""
        daemon = make_configured(FEW + f"descriptors = {9 - short}\n")

        def create():
            with Wire(daemon.socket) as w:
                for name in "m", "n":
                    publish(w, name)
                again = outcome(publish, w, "m")
                with pytest.raises(Refused, match=f"uid {ALICE} has too many descriptors; remove some buffers"):
                    w.create("more", LAYOUT)
                w.drop("n")
                until(lambda: w.list(wire.USERS)[0].used_descriptors == 5 - (again != 0), "its memory is free")
                return again, outcome(publish, w, "more"), outcome(publish, w, "m")

        assert run_as(ALICE, create) == (errno.EDQUOT * short, 0, errno.EDQUOT)

    def test_one_user_may_have_more_than_each(self, make_configured):
        daemon = make_configured(f"[limits:{ALICE}]\nbytes = unlimited\n[limits]\nbytes = 0\n")

        def create():
            with Wire(daemon.socket) as w:
                return outcome(w.create, f"m{os.getuid()}", LAYOUT)

        assert [run_as(uid, create) for uid in (ALICE, BOB, 0)] == [0, errno.EDQUOT, errno.EDQUOT]


# --- Administrators ---------------------------------------------------------------------------------


def test_administrators_may_what_root_may(make_configured, root_only):
    daemon = make_configured(f"admin-group = {STAFF}\n")

    def make():
        with Wire(daemon.socket) as w:
            publish(w, "m", mode=0o600)

    def act():
        with Wire(daemon.socket) as w:
            return outcome(w.attach, "m"), outcome(w.create, "m", LAYOUT, owner=ALICE), outcome(w.drop, "m")

    run_as(ALICE, make)
    denied = (errno.EACCES,) * 3
    assert run_as(BOB, act) == denied
    assert run_as(CAROL, act, groups=[STAFF]) == (0, 0, 0)
    run_as(ALICE, make)
    assert run_as(CAROL, act, gid=STAFF) == (0, 0, 0)


def test_a_group_with_many_members_is_found(conf, require):
    """Its record is far longer than that of others."""
    require("mounts")
    path = conf("[server]\nadmin-group = crowd\n")
    script = """
        mount -t tmpfs none /etc &&
        echo "group: files" >/etc/nsswitch.conf &&
        { printf "crowd:x:777:"; seq -f member-%g -s, 100000; } >/etc/group && exec "$0" --check-config "$1" """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, WEIGHTD, path], env=environment(),
                          capture_output=True, text=True, timeout=STOP_S)
    assert (done.returncode, done.stderr) == (0, "")


# --- Reloading --------------------------------------------------------------------------------------


def reload(daemon, said):
    """Sends SIGHUP, and waits for the log line about it. Returns all lines since."""
    before = len(daemon.log)
    daemon.proc.send_signal(signal.SIGHUP)
    until(lambda: said in daemon.log[before:], lambda: daemon.log)
    return daemon.log[before:]


DONE, FAILED = "weightd: configuration read again\n", "weightd: the configuration stays as it was\n"


def test_a_reload_changes_limits_at_once_and_takes_nothing_away(make_configured, conf, root_only):
    daemon = make_configured("[limits]\nleases = 3\n")
    with Wire(daemon.socket) as w:
        publish(w, "m", mode=0o644)
        leases = [w.attach("m") for _ in range(3)]
        assert outcome(w.attach, "m") == errno.EDQUOT
        conf("[limits:0]\nleases = 4\n")
        assert reload(daemon, DONE) == "weightd: [server] socket-mode has changed; it needs a restart\n" + DONE
        assert (outcome(w.attach, "m"), outcome(w.attach, "m")) == (0, errno.EDQUOT)
        conf("[server]\nsocket-mode = 0666\n[limits]\nleases = 1\n")
        assert reload(daemon, DONE) == DONE
        assert outcome(w.attach, "m") == errno.EDQUOT
        assert all(lease.bytes() == bytes(PAGE) for lease in leases)
        assert os.stat(daemon.socket).st_mode & 0o777 == 0o666


def test_a_reload_with_errors_changes_nothing(make_configured, conf, root_only):
    daemon = make_configured(f"admin-group = {STAFF}\n[limits]\nbuffers = 1\n")
    path = conf("[limits]\nbuffers = 5\n[defaults]\nkeep = many\n")
    assert reload(daemon, FAILED) == \
        f"weightd: {path}:4: 'keep' (versions that a buffer keeps by default) does not take 'many'; " \
        "it takes 1 to 32\n" + FAILED
    path.unlink()
    assert reload(daemon, FAILED) == f"weightd: cannot read {path}: No such file or directory\n" + FAILED
    with Wire(daemon.socket) as w:
        w.create("a", LAYOUT, mode=0o600)
        assert outcome(w.create, "b", LAYOUT) == errno.EDQUOT
        assert run_as(CAROL, lambda: outcome(Wire(daemon.socket).create, "a", LAYOUT, owner=0), gid=STAFF) == errno.EBUSY


def test_a_reload_makes_and_unmakes_administrators(make_configured, conf, root_only):
    daemon = make_configured("")
    with Wire(daemon.socket) as w:
        publish(w, "m", mode=0o600)

    def body(pipe):
        with Wire(daemon.socket) as mine:
            while True:
                pipe.send(outcome(mine.attach, "m"))
                pipe.recv()

    with Child(body, uid=BOB, gid=STAFF) as child:
        answers = [child.hear()]
        for text in f"admin-group = {STAFF}\n", "":
            conf("[server]\nsocket-mode = 0666\n" + text)
            reload(daemon, DONE)
            child.say("again")
            answers.append(child.hear())
    assert answers == [errno.EACCES, 0, errno.EACCES]


def test_a_reload_changes_the_log_level_unless_the_command_line_says_it(make_daemon, conf):
    for args, quiet in ([], True), (["--log-level", "info"], False):
        daemon = make_daemon("--config", conf("[limits]\nbuffers = 0\n"), *args)
        conf("[server]\nlog-level = error\n")
        daemon.proc.send_signal(signal.SIGHUP)
        with Wire(daemon.socket) as w:  # allowed as soon as the file was read
            until(lambda: outcome(w.create, "m", LAYOUT) == 0, "a buffer may be made")
            publish(w, "n")
        until(lambda: quiet or DONE in daemon.log, lambda: daemon.log)
        assert ("'n@1' on host published" in daemon.log) == (not quiet)


def test_a_signal_during_a_reload_is_not_lost(make_daemon, conf):
    daemon = make_daemon("--config", conf("[limits]\nbuffers = 0\n"))
    slow = "[limits:root]\n" * 10000  # looked up each time, long after the file was read

    def has_all(w, n):
        while outcome(w.create, f"m{len(w.fds)}", LAYOUT) == 0:
            pass
        return w.ping().n_buffers == n

    with Wire(daemon.socket) as w:
        for n in range(2, 12, 2):
            for limit in n - 1, n:
                conf(f"[limits]\nbuffers = {limit}\n{slow}")
                daemon.proc.send_signal(signal.SIGHUP)
                w.ping()
            until(lambda: has_all(w, n), f"the last file holds: {n} buffers")


# --- Reserved names -----------------------------------------------------------------------------------


NAMES = f"[names]\nllama/* = @{STAFF} {ALICE}\nllama/open/* = *\nllama/base = root\n"


def creates(daemon, *names, **kw):
    """For each name 0, or the errno with which a create is refused; every version is removed again."""
    def body():
        with Wire(daemon.socket) as w:
            return [outcome(lambda: w.abort(w.create(name, LAYOUT, **kw).writer)) for name in names]
    return body


@pytest.mark.usefixtures("root_only")
class TestNames:
    def test_only_those_of_the_list_and_administrators_create(self, make_configured):
        daemon = make_configured("admin-group = 777\n" + NAMES)
        body = creates(daemon, "llama/7b", "llama/open/x", "llama/base", "llama", "other")
        no = errno.EACCES
        assert run_as(ALICE, body) == [0, 0, no, 0, 0]
        assert run_as(BOB, body) == [no, 0, no, 0, 0]
        assert run_as(BOB, body, groups=[STAFF]) == [0, 0, no, 0, 0]
        assert run_as(BOB, body, gid=STAFF) == [0, 0, no, 0, 0]
        assert run_as(BOB, body, groups=[777]) == [0] * 5
        assert run_as(0, body) == [0] * 5

    def test_the_refusal_names_the_pattern_and_those_who_may_and_is_audited(self, make_configured):
        daemon = make_configured(NAMES)

        def body():
            with Wire(daemon.socket) as w, pytest.raises(Refused) as refused:
                w.create("llama/7b", LAYOUT)
            return refused.value.sentence

        assert run_as(BOB, body) == \
            f"uid {BOB} may not create 'llama/7b': [names] of weightd.conf reserves 'llama/*' for @{STAFF} {ALICE}; " \
            "choose another name, or ask an administrator"
        assert "'llama/7b' on host refused to pid" in daemon.log and "create: Permission denied" in daemon.log
        with Wire(daemon.socket) as w:
            assert w.names() == []

    def test_names_of_jobs_are_reserved_by_the_same_patterns(self, make_configured):
        daemon = make_configured("admin-group = 777\n" + NAMES)

        def body():
            with Wire(daemon.socket) as w:
                for name in "llama/7b", "llama/base", "other":
                    yield outcome(lambda: w.remove_job(name) if w.create_job(name) else None)

        no = errno.EACCES
        assert run_as(ALICE, lambda: [*body()]) == [0, no, 0]
        assert run_as(BOB, lambda: [*body()]) == [no, no, 0]
        assert run_as(BOB, lambda: [*body()], groups=[777]) == run_as(0, lambda: [*body()]) == [0] * 3
        assert "job 'llama/7b' refused to pid" in daemon.log and "create: Permission denied" in daemon.log

    def test_the_refusal_of_a_job_names_those_who_may_and_what_there_is_stays(self, make_configured, conf):
        daemon = make_configured("")

        def create(name):
            with Wire(daemon.socket) as w:
                return w.create_job(name)

        def join(name, token):
            with Wire(daemon.socket) as w:
                return w.join(name, token).n_present

        def sentence():
            with pytest.raises(Refused) as refused:
                create("llama/7b")
            return refused.value.sentence

        token = run_as(BOB, lambda: create("llama/old"))
        conf("[server]\nsocket-mode = 0666\n" + NAMES)
        assert reload(daemon, DONE) == DONE
        assert run_as(BOB, sentence) == \
            f"uid {BOB} may not create job 'llama/7b': [names] of weightd.conf reserves 'llama/*' for @{STAFF} {ALICE}; " \
            "choose another name, or ask an administrator"
        assert run_as(BOB, lambda: join("llama/old", token)) == 1

    def test_versions_of_an_existing_buffer_need_its_mode_alone(self, make_configured):
        daemon = make_configured(NAMES)

        def body():
            with Wire(daemon.socket) as w:
                publish(w, "llama/7b", mode=0o666, owner=ALICE)

        run_as(ALICE, body)
        run_as(BOB, body)
        with Wire(daemon.socket) as w:
            assert w.records()["llama/7b"].version == 2 and w.records()["llama/7b"].uid == ALICE

    def test_a_reload_reserves_and_frees_names_and_leaves_buffers_as_they_are(self, make_configured, conf):
        daemon = make_configured("")
        head = "[server]\nsocket-mode = 0666\n"

        def body():
            with Wire(daemon.socket) as w:
                publish(w, "llama/mine")

        run_as(BOB, body)
        conf(head + NAMES)
        assert reload(daemon, DONE) == DONE
        assert run_as(BOB, creates(daemon, "llama/mine", "llama/more")) == [0, errno.EACCES]
        path = conf(head + f"[names]\nllama/* = {BOB}\n*x = {BOB}\n")
        assert f"{path}:5: '*x' matches no name of a buffer: " in reload(daemon, FAILED)
        assert run_as(BOB, creates(daemon, "llama/more")) == [errno.EACCES], "a file with errors changes nothing"
        conf(head)
        assert reload(daemon, DONE) == DONE
        assert run_as(BOB, creates(daemon, "llama/more")) == [0]

    def test_the_one_who_owns_the_name_by_the_list_takes_it_back_from_a_stranger(self, make_configured, conf):
        """The way out that weightd.conf(5) names."""
        daemon = make_configured("")
        run_as(BOB, lambda: publish(Wire(daemon.socket), "llama/7b"))
        conf("[server]\nsocket-mode = 0666\n" + NAMES)
        reload(daemon, DONE)
        daemon.ctl("chown", str(ALICE), "llama/7b")
        assert run_as(BOB, creates(daemon, "llama/7b", owner=ALICE)) == [errno.EACCES]
        assert run_as(ALICE, creates(daemon, "llama/7b")) == [0]

    def test_a_restart_keeps_a_buffer_whose_name_is_reserved_since(self, make_configured, conf):
        daemon = make_configured("", "--keeper")
        run_as(BOB, lambda: publish(Wire(daemon.socket), "llama/7b"))
        conf("[server]\nsocket-mode = 0666\n" + NAMES)
        with Wire(daemon.socket) as w:
            os.kill(w.ping().pid, signal.SIGKILL)
            w.hang_up()
        with Wire(daemon.socket) as w:
            assert w.records()["llama/7b"].uid == BOB
        assert run_as(BOB, creates(daemon, "llama/7b", "llama/more")) == [0, errno.EACCES]

    def test_names_of_users_and_groups_are_found(self, make_configured):
        daemon = make_configured("[names]\na = nobody root\nb = @root\n")
        assert run_as(BOB, creates(daemon, "a", "b")) == [errno.EACCES] * 2
        assert run_as(BOB, creates(daemon, "a", "b"), groups=[0]) == [errno.EACCES, 0]
