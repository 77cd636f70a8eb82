"""Eight processes compute MiniLM over one copy of its weights; and the demo that shows it."""
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from demo import pool
from lib import features
from lib.daemon import environment

DEMO = features.ROOT / "tests/demo"

# Its own deadlines end it before. What is ours in it, other tests run sanitized.
pytestmark = [pytest.mark.timeout(500), pytest.mark.plain]
DEMO_S = 400  # eight workers one behind the other, each of which pool.py gives 120 s, and two nodes
LANGUAGES = ("C", "Python")
# The kernel may remove a page that a process has looked at from its table at any time
# (a run of CI was two pages of 22,183 short): 22 pages in 22,183 may be missing.
NEARLY_ALL = 0.999
ODD_SENTENCES = (
    "", "x", "?!", "a" * 120, "word " * 300, "東京 is unaffable",
    "Crème brûlée, naïve CAFÉ: Übergrößen, Łódź… №5 — «œuvre»",
    "e\u0301te\u0301\u200b \u00a0don't\tstop", "\u2603 \U0001f600 snow",
)


@pytest.fixture(autouse=True)
def needs():
    """Requirements of the Python workers."""
    features.require("library")
    features.require("numpy")


def worker_env(daemon=None):
    env = daemon.env if daemon else environment()
    return env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}


@pytest.fixture
def start(build):
    """start("C", env, *arguments): a worker, which ends with the test."""
    workers = []

    def start(language, env, *arguments):
        workers.append(pool.Worker(build, language, arguments, env))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def over_file(start, model):
    """over_file("C", file, *sentences): the report of a worker with a private copy of the file."""
    def over_file(language, file, *sentences):
        worker = start(language, worker_env(), "--vocab", model / "vocab.txt", "--file", file,
                       *sentences)
        report = worker.report()
        worker.stop()
        return report

    return over_file


@pytest.fixture
def eight(daemon, model, start):
    """Eight workers that have computed over version 1 of the buffer minilm."""
    daemon.ctl("load", "minilm", model)
    arguments = ["--follow", "--vocab", model / "vocab.txt", "minilm", *pool.SENTENCES]
    workers = [start(language, worker_env(daemon), *arguments) for language in 4 * LANGUAGES]
    for worker in workers:
        worker.report()
    return workers


def change_words(source, target):
    """A copy of the safetensors file with noise on the embeddings of words."""
    import numpy
    data = bytearray(source.read_bytes())
    n_header = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + n_header])["embeddings.word_embeddings.weight"]
    first, last = (8 + n_header + offset for offset in entry["data_offsets"])
    words = numpy.frombuffer(data, numpy.float32, (last - first) // 4, first)
    words += 0.08 * numpy.random.default_rng(1).standard_normal(len(words), numpy.float32)
    target.write_bytes(data)


# --- The computation ------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_embeddings_are_those_of_sentence_transformers(over_file, model, language):
    report = over_file(language, model / "model.safetensors", "The weather is lovely today.",
                       "It's so sunny outside!", "He drove to the stadium.")
    cosines = [pool.similarity(report, pair) for pair in ((0, 1), (0, 2), (1, 2))]
    # From its documentation, "Quickstart".
    assert cosines == pytest.approx([0.6660, 0.1046, 0.1411], abs=1e-4)


def test_c_and_python_agree_on_odd_sentences(over_file, model):
    a, b = (over_file(language, model / "model.safetensors", *ODD_SENTENCES)
            for language in LANGUAGES)
    assert len(a["embeddings"]) == len(b["embeddings"]) == len(ODD_SENTENCES)
    assert pool.largest_difference(a, b) < 1e-5
    assert a["checksum"] == b["checksum"]


# --- The shared copy ------------------------------------------------------------------------------


def check_memory(daemon, eight, start):
    """Eight hold one copy, and a ninth adds nothing."""
    one_copy, = (row["size"] for row in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"])
    shares = [worker.weights() for worker in eight]
    for share in shares:  # each has looked at all of it
        assert share["Rss"] >= NEARLY_ALL * one_copy
    of_eight = sum(share["Pss"] for share in shares)
    assert of_eight <= 1.05 * one_copy

    ninth = start("C", worker_env(daemon), "--follow", "minilm")
    ninth.report()
    assert ninth.weights()["Rss"] >= NEARLY_ALL * one_copy
    of_nine = sum(worker.weights()["Pss"] for worker in (*eight, ninth))
    assert of_nine - of_eight < 1 << 20
    assert of_nine <= 1.05 * one_copy


def test_eight_workers_share_a_copy_and_compute_the_bits_of_a_private_one(daemon, eight, start, over_file, model, tmp_path):
    def check(version, file):
        wanted = {language: over_file(language, file, *pool.SENTENCES) for language in LANGUAGES}
        for worker in eight:
            assert worker.last["version"] == version
            assert worker.last["checksum"] == wanted[worker.language]["checksum"]
            assert worker.last["embeddings"] == wanted[worker.language]["embeddings"]
        assert pool.largest_difference(wanted["C"], wanted["Python"]) < 1e-5

    check_memory(daemon, eight, start)
    check(1, model / "model.safetensors")
    for worker in eight:
        assert min(pool.similarity(worker.last, pair) for pair in pool.ALIKE) > 0.85
        assert max(pool.similarity(worker.last, pair) for pair in pool.UNLIKE) < 0.2
    before = pool.similarity(eight[0].last, pool.ALIKE[1])

    changed = tmp_path / "changed.safetensors"
    change_words(model / "model.safetensors", changed)
    daemon.ctl("load", "minilm", changed)
    for worker in eight:
        worker.report()
    check(2, changed)
    assert pool.similarity(eight[0].last, pool.ALIKE[1]) < before - 0.05
    for worker in eight:
        worker.stop()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_worker_ends_with_0_at_sigterm(daemon, model, start, language):
    daemon.ctl("load", "minilm", model)
    worker = start(language, worker_env(daemon), "--follow", "minilm")
    worker.report()
    worker.process.terminate()
    assert worker.process.wait(pool.STOP_S) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_worker_without_its_buffer_says_so(daemon, build, language):
    program = [build / "demo/worker"] if language == "C" else [sys.executable, DEMO / "worker.py"]
    done = subprocess.run([*program, "nobody"], env=worker_env(daemon), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "nobody" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# --- The demo -------------------------------------------------------------------------------------


def demo_command(build, model, tmp_path):
    """The script, and an environment in which all that it may leave behind is under tmp_path."""
    env = environment(WEIGHTD_BUILD=str(build), MODEL=str(model), TMPDIR=str(tmp_path))
    return {"args": [DEMO / "run"], "env": env, "stdin": subprocess.DEVNULL, "text": True,
            "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def check_versions(build, shown):
    """All eight processes moved on; and one on the second node, after two pushes."""
    has_second = (build / "weightd-sync").exists()
    assert shown.count("version 1 -> 2") == 8 + has_second, shown
    if has_second:
        pushes = re.findall(r"minilm 1\.([12]) on 2 of 2 nodes in .*?, ([0-9.]+)% of", shown)
        assert [number for number, _ in pushes] == ["1", "2"], shown
        assert float(pushes[1][1]) <= float(pushes[0][1]) == 100, shown
        assert "match their digest" in shown, shown


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_demo_shows_the_model_and_leaves_nothing_behind(build, model, tmp_path):
    done = subprocess.run(**demo_command(build, model, tmp_path), timeout=DEMO_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    check_versions(build, done.stdout)
    assert not (build / "weightd-sync").exists() or ", 4.2% of 90.9 MB" in done.stdout, done.stdout
    after_the_paths = done.stdout[done.stdout.index("\n2. "):]
    assert max(map(len, after_the_paths.splitlines())) <= 80, done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def other_model(tmp_path):
    header = json.dumps({
        "b": {"dtype": "U8", "shape": [13], "data_offsets": [0, 13]},
        "w": {"dtype": "BF16", "shape": [1000, 3], "data_offsets": [13, 6013]},
    }).encode()
    data = bytes(i % 251 for i in range(6013))
    file = tmp_path / "other.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return file


def test_demo_takes_any_other_model_without_the_right_to_namespaces(build, other_model, tmp_path):
    """Its second node is on the loopback interface then."""
    folder = tmp_path / "t"  # the path of a socket has 107 bytes
    folder.mkdir()
    command = demo_command(build, other_model, folder)
    if is_root := os.geteuid() == 0:
        command["args"] = ["setpriv", "--bounding-set=-sys_admin,-net_admin", *command["args"]]
    done = subprocess.run(**command, timeout=DEMO_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This is not all-MiniLM-L6-v2" in done.stdout
    if is_root and (build / "weightd-sync").exists():
        assert "Each agent has a loopback address" in done.stdout, done.stdout
    check_versions(build, done.stdout)
    assert list(folder.iterdir()) == []


def test_demo_without_a_model_says_so(build, tmp_path):
    done = subprocess.run(**demo_command(build, "/nonexistent/model", tmp_path), timeout=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "/nonexistent/model" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_that_is_stopped_takes_its_processes_along(build, model, tmp_path):
    demo = subprocess.Popen(**demo_command(build, model, tmp_path))
    pids = []
    for line in demo.stdout:
        if ", pid " in line:
            pids.append(int(line.split(", pid ")[1].split(",")[0]))
        if line.startswith("3."):
            break
        if line.split()[:1] in (["C"], ["Python"]):
            pids.append(int(line.split()[1]))
    demo.terminate()
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGTERM, errors
    assert len(pids) == 9 and not any(map(is_running, pids)), pids
    assert list(tmp_path.iterdir()) == []
