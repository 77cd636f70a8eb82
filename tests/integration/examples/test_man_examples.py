"""The literal blocks of man pages: each is run, or compared, by a test, and those of commands run here as they are printed."""
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys

import pytest
from integration.examples.pages import MAN, commands, literals, script, sections
from integration.weightctl.test_weightctl import write_safetensors
from lib import features, gguf, tracing, usdt_notes
from lib.daemon import environment
from lib.fake_agent import FakeAgent
from lib.features import ROOT, require
from lib.nodes import MIB, until
from lib.scene import publish
from lib.wire import Wire

pytestmark = pytest.mark.plain

PATIENCE_S = 100
HERE = "tests/integration/examples/test_man_examples.py::"
README = "tests/integration/examples/test_readme.py::"
SERVICES = "tests/systemd/test_man_services.py::"
NODES = "tests/systemd/test_sync.py::"

RUN = {  # (page, section): the test of each of its blocks
    ("libweightd.3", "EXAMPLE"): [f"{README}test_the_c_snippet_compiles_and_runs"],
    ("weightctl.1", "VERBS"): [f"{HERE}test_shards_of_four_nodes_become_those_of_two_and_a_whole"],
    ("weightctl.1", "PARTS AND TYPES"): [f"{HERE}test_a_rank_loads_its_part_by_a_file_of_rules"],
    ("weightctl.1", "EXAMPLES"): [
        f"{HERE}test_a_job_is_resumed_after_all_of_its_ranks_were_ended",
        f"{HERE}test_a_program_gets_the_model_by_its_path",
        f"{HERE}test_a_program_gets_a_gguf_file_by_its_path",
        f"{HERE}test_a_tensor_is_read",
        f"{HERE}test_a_script_waits_for_the_first_version",
        f"{HERE}test_a_version_is_loaded_to_the_first_gpu",
        f"{HERE}test_buffers_without_readers_are_removed",
        f"{HERE}test_a_buffer_is_rolled_back",
        f"{HERE}test_a_version_is_pushed_and_the_push_recorded",
        f"{HERE}test_a_version_is_pushed_and_the_push_recorded",
        f"{HERE}test_a_push_to_a_thousand_nodes_is_predicted",
        f"{HERE}test_shards_of_four_nodes_become_those_of_two_and_a_whole",
        f"{HERE}test_certificates_are_made",
        f"{HERE}test_each_new_version_is_passed_to_another_program",
        f"{HERE}test_a_version_is_pushed_and_the_push_recorded",
        f"{HERE}test_recordings_of_two_nodes_are_merged",
        f"{HERE}test_acts_on_gpu_memory_are_printed"],
    ("weightd-gpu.7", "TESTS"): ["tests/bare/test_gpu.py::test_the_pack_runs_on_another_distribution"],
    ("weightd-load.8", "DESCRIPTION"): ["tests/systemd/test_preload.py::test_a_boot_loads_the_models_and_reports_files_with_errors"],
    ("weightd-load.8", "EXAMPLE"): ["tests/systemd/test_preload.py::test_the_example_of_the_manual_is_right"] * 3,
    ("weightd-protocol.7", "EXAMPLE"): [
        "tests/integration/packaging/test_man.py::test_the_example_of_the_page_of_the_protocol_reads_a_version"],
    ("weightd-python.3", "MODULES OF TORCH"): [f"{README}test_the_section_on_torch_runs_with_todays_models"] * 3,
    ("weightd-python.3", "TRAINING"): [f"{README}test_the_trainers_in_python_find_the_same_line_and_save"] * 2,
    ("weightd-python.3", "TRAINING ON SEVERAL MACHINES"): [
        "tests/integration/train/test_torch_launchers.py::"
        "test_torchrun_on_two_nodes_restarts_the_rank_of_one_for_which_the_other_waits",
        *["tests/integration/train/test_torch_nodes.py::test_the_snippets_of_the_page_train_on_two_nodes"] * 2],
    ("weightd-python.3", "TRAINING WITH SHARDED PARAMETERS"): [
        "tests/integration/train/test_torch_nodes.py::test_the_snippets_of_the_page_train_on_two_nodes",
        "tests/integration/train/test_torch_nodes.py::test_the_mesh_of_replicas_of_the_page_has_each_on_four_machines"],
    ("weightd-python.3", "TRAINING IN OTHER TYPES"): [f"{README}test_the_trainers_in_python_find_the_same_line_and_save"],
    ("weightd-python.3", "MODELS OF TRANSFORMERS"): [f"{README}test_the_section_on_torch_runs_with_todays_models"] * 2,
    ("weightd-python.3", "BUFFERS ON A GPU"): [f"{README}test_the_section_on_gpus_runs_on_a_stand_in"],
    ("weightd-sync.8", "SETTING UP THREE NODES"): [f"{NODES}test_three_nodes_are_set_up_as_the_page_tells"] * 8,
    ("weightd-sync.8", "SECURITY"): [
        f"{NODES}test_the_other_nodes_exclude_a_node_that_is_revoked_as_the_page_tells",
        f"{NODES}test_with_the_drop_in_of_the_page_nodes_reach_each_other_and_nothing_else"],
    ("weightd-sync.8", "METRICS"): [f"{NODES}test_the_timer_of_the_page_writes_metrics"] * 2,
    ("weightd-trace.8", "NCCL"): ["tests/bpf/test_nccl_real.py::test_what_a_real_nccl_says_of_a_socket_is_what_the_kernel_counts"],
    ("weightd-trace.8", "EXAMPLES"): [f"{HERE}test_the_bytes_of_a_connection_are_counted"],
    ("weightd-train.7", "PLAN"): [f"{HERE}test_the_sentence_on_plans_that_differ_is_one_that_the_library_returns"],
    ("weightd-train.7", "NODES"): [f"{README}test_the_trainer_in_c_finds_the_line_on_two_nodes"],
    ("weightd-train.7", "EXAMPLE"): [f"{README}test_the_trainer_in_c_finds_the_line",
                                     f"{README}test_the_trainers_in_python_find_the_same_line_and_save"],
    ("weightd.8", "MEMORY"): [f"{SERVICES}test_the_slice_has_the_service_and_its_limits"],
    ("weightd.8", "AUDIT"): [f"{SERVICES}test_the_journal_has_the_publishes_of_a_buffer"],
    ("weightd.8", "PROBES"): [f"{HERE}test_bpftrace_tells_who_attaches"],
    ("weightd.8", "EXAMPLES"): [f"{HERE}test_a_private_weightd_has_a_model"],
    ("weightd.conf.5", "HELD MEMORY"): [f"{SERVICES}test_with_the_drop_in_weightd_ends_readers_that_hold_too_much"],
    ("weightd.conf.5", "[NAMES]"): [f"{SERVICES}test_names_are_for_the_users_and_groups_of_the_example"],
    ("weightd.conf.5", "RIGHTS AND COSTS"): [
        "tests/integration/server/test_matrix.py::test_the_page_shows_what_weightd_answers_and_charges"] * 2,
    ("weightd.conf.5", "EXAMPLE"): [f"{SERVICES}test_the_example_of_the_configuration"],
}


def test_each_block_is_run_by_a_test():
    pages = sorted(path.stem for path in MAN.glob("*.scd"))
    found = {(page, title): len(blocks) for page in pages for title, blocks in sections(page).items() if blocks}
    assert found == {place: len(tests) for place, tests in RUN.items()}
    for test in {test for tests in RUN.values() for test in tests}:
        path, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text(), test


TRAIN, EXEC, GGUF, READ, WAIT, GPU, REMOVE, ROLLBACK, DRY_RUN, PUSH, PLAN, RESHARD, PKI, WATCH, RECORD, MERGE, LOG = \
    literals("weightctl.1", "EXAMPLES")


@pytest.fixture
def start(tmp_path, build):
    """start(script, env): a shell that runs it in tmp_path, with the programs under test and those in tmp_path/bin."""
    (tmp_path / "bin").mkdir()
    started = []

    def run(text, env):
        path = f"{tmp_path}/bin:{build}:{os.environ['PATH']}"
        started.append(subprocess.Popen(["bash", "--norc", "-euc", text], cwd=tmp_path, env=env | {"PATH": path}, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True))
        return started[-1]

    yield run
    for shell in started:
        with shell:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)


@pytest.fixture
def run(start):
    """run(script, env): its output, once it has ended well."""
    def run(text, env):
        shell = start(text, env)
        out, errors = shell.communicate(timeout=PATIENCE_S)
        assert shell.returncode == 0, f"{text}: {out}{errors}"
        return out

    return run


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


# --- weightctl(1) ------------------------------------------------------------------------------------


def test_a_job_is_resumed_after_all_of_its_ranks_were_ended(daemon, line, start, run, tmp_path):
    """Ranks of the trainer in C of weightd-train(7). In the first run they wait for rank 3, in the second one rank 2 dies."""
    os.mkfifo(tmp_path / "gate")
    program(tmp_path / "train.py", f"""#!/bin/sh
if ! [ -e ended ] && [ "$RANK" = 3 ]; then exec cat gate; fi
if [ -e ended ] && [ "$RANK" = 2 ] && mkdir died 2>/dev/null; then kill -9 $$; fi
exec {line}
""")
    first = start(f"exec {script(TRAIN)}", daemon.env)

    def n_present():
        return [(job["ranks"], job["present"]) for job in json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]]

    until(lambda: n_present() == [(4, 3)], n_present)
    first.terminate()
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 128 + signal.SIGTERM and (tmp_path / "gpt").exists()
    until(lambda: n_present() == [(4, 0)], n_present)
    (tmp_path / "ended").touch()
    assert run(script(TRAIN), daemon.env) == "2.00 x + 1.00\n"
    assert (tmp_path / "died").exists() and not (tmp_path / "gpt").exists()
    assert n_present() == []


def test_a_program_gets_the_model_by_its_path(daemon, model, run, tmp_path):
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / "generate.py").write_text("import os, sys\nprint(sys.argv[1], *sorted(os.listdir(sys.argv[2])))")
    daemon.ctl("load", "-q", "llama-8b", model)
    assert run(script(EXEC), daemon.env) == "--model config.json model.safetensors tokenizer.json vocab.txt\n"


def test_a_program_gets_a_gguf_file_by_its_path(daemon, run, tmp_path):
    """The bytes of the file that was loaded."""
    gguf.write(tmp_path / "qwen-Q4_K.gguf", {"w": ("Q4_K", [2, 256], bytes(range(144)) * 2)})
    program(tmp_path / "bin/llama-cli", '#!/bin/sh\necho "$1" && exec cmp "$2" qwen-Q4_K.gguf\n')
    assert run(script(GGUF), daemon.env).splitlines()[1:] == ["-m"]


def test_a_tensor_is_read(daemon, model, run, tmp_path):
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(model)
    _, head, *rows = run(script(READ), daemon.env).splitlines()
    tensors, numbers = rows[:-10], [number for row in rows[-10:] for number in row.split()[1:]]
    assert head.split() == ["NAME", "DTYPE", "SHAPE"]
    assert ["embeddings.LayerNorm.bias", "F32", "384"] in [re.sub(r"[][(),]", "", row).split() for row in tensors]
    raw = daemon.ctl("cat", "minilm", "embeddings.LayerNorm.bias", text=False).stdout
    assert list(map(float, numbers)) == pytest.approx(struct.unpack("<40f", raw[:160]), rel=1e-5)


def test_a_script_waits_for_the_first_version(daemon, start, tmp_path):
    program(tmp_path / "worker", "#!/bin/sh\necho works\n")
    late = start(script(WAIT).replace("60", "0.1"), daemon.env)
    out, errors = late.communicate(timeout=PATIENCE_S)
    assert (late.returncode, out) == (1, "") and "minilm" in errors
    shell = start(script(WAIT), daemon.env)
    daemon.ctl("load", "-q", "minilm", write_safetensors(tmp_path / "m.safetensors", [("t", "U8", [4], b"abcd")]))
    assert shell.communicate(timeout=PATIENCE_S) == ("minilm@1 on host\nworks\n", "") and shell.returncode == 0


def test_a_version_is_loaded_to_the_first_gpu(make_daemon, gpu, model, run, tmp_path):
    (tmp_path / "llama-8b").symlink_to(model)
    daemon = make_daemon(env=gpu.env)
    out = run(script(GPU), daemon.env)
    assert re.search(r"^cuda:0 ", out, re.M) and re.search(r"^llama-8b@1 on cuda:0: matches digest xxh3:", out, re.M), out


def test_buffers_without_readers_are_removed(daemon, weightd, run, tmp_path):
    require("jq", "no jq (apt-get install jq)", bool(shutil.which("jq")))
    for name in "first", "second", "third":
        daemon.ctl("load", "-q", name, write_safetensors(tmp_path / "m.safetensors", [("t", "U8", [4], b"abcd")]))
    with weightd.attach("second"):
        out = run(script(REMOVE), daemon.env)
    assert re.match(r"second@1 on host: matches digest xxh3:", out.splitlines()[-1]), out
    assert daemon.ctl("ls", "--noheadings", "-o", "NAME").stdout == "second\n"


def test_a_buffer_is_rolled_back(daemon, run, tmp_path):
    for data in b"abcd", b"efgh":
        daemon.ctl("load", "-q", "llama-8b", write_safetensors(tmp_path / "m.safetensors", [("t", "U8", [4], data)]))
    out = run(script(ROLLBACK), daemon.env)
    assert "llama-8b" in out and daemon.ctl("cat", "llama-8b", "t").stdout == "abcd", out


def test_a_rank_loads_its_part_by_a_file_of_rules(daemon, tmp_path):
    tensors = [(f"model.layers.0.{name}.weight", "U8", [4, 2], bytes(range(8))) for name in ("mlp.down_proj", "self_attn.gate")]
    (tmp_path / "rules").write_text(sections("weightctl.1")["PARTS AND TYPES"][0])
    daemon.ctl("load", "-q", "--tp", "1/2", "--tp-rules", tmp_path / "rules", "m", write_safetensors(tmp_path / "m.safetensors", tensors))
    assert json.loads(daemon.ctl("tensors", "m", "--json").stdout)["tensors"][0]["shape"] == [4, 1]
    assert [daemon.ctl("cat", "m", name, text=False).stdout for name, *_ in tensors] == [bytes(range(1, 8, 2)), bytes(range(8))]


def test_a_push_to_a_thousand_nodes_is_predicted(run):
    out = run(script(PLAN), environment())
    assert "1.0 TB to 999 nodes of 42.5 GB/s (85% of 400 Gb/s)" in out and "Stragglers: 10, 2 times slower" in out, out


def test_certificates_are_made(run, tmp_path):
    require("sync")
    out = run(script(PKI), environment())
    assert re.search(r"\bb\b", out) and (tmp_path / "a/a.key").exists() and (tmp_path / "b/b.key").exists(), out


def test_each_new_version_is_passed_to_another_program(daemon, start, tmp_path):
    """Loads until the shell has printed one: it does not report that it watches."""
    require("jq", "no jq (apt-get install jq)", bool(shutil.which("jq")))
    text = script(WATCH)
    assert text.endswith(" do ...\n")
    shell = start(text.replace("...", 'echo "new: $name"; done'), daemon.env)
    path = write_safetensors(tmp_path / "m.safetensors", [("t", "U8", [4], b"abcd")])

    def is_passed():
        daemon.ctl("load", "-q", "minilm", path)
        return select.select([shell.stdout], [], [], 0.1)[0]

    until(is_passed, "the shell prints a name")
    assert shell.stdout.readline() == "new: minilm\n"
    os.killpg(shell.pid, signal.SIGTERM)
    shell.communicate(timeout=PATIENCE_S)


def test_a_version_is_pushed_and_the_push_recorded(make_nodes, start, run, tmp_path):
    require("bpf")
    nodes = make_nodes(2)
    env = nodes["a"].daemon.env | {"WEIGHTD_SYNC_SOCKET": nodes["a"].control_socket}
    nodes["a"].publish("llama-8b", seed=1, size=MIB)
    assert " b " in run(script(DRY_RUN), env) and not nodes["b"].has("llama-8b", 1)
    (_, record), = commands(RECORD)
    recorder = start(f"exec {record}", environment(WEIGHTD_TRACE_SOCKET=nodes.trace_socket))
    assert recorder.stderr.readline() == "weightctl: recording\n"
    out = run(script(PUSH), env)
    assert re.search(r" b +committed ", out), out
    recorder.send_signal(signal.SIGINT)  # before the minute is over
    assert recorder.communicate(timeout=PATIENCE_S) == ("", "") and recorder.returncode == 0
    events = json.loads((tmp_path / "push.json").read_text())
    assert [e for e in events if e["ph"] == "X" and e["cat"] == "payload"], events
    nodes.settle("llama-8b", seed=1)


SHAPES = {"h.o_proj.weight": [4, 8], "h.q_proj.weight": [8, 4], "h.norm": [6]}


def test_shards_of_four_nodes_become_those_of_two_and_a_whole(make_nodes, numpy, run, tmp_path):
    """By the split of VERBS; the second one is of what it makes."""
    require("gloo")
    whole = {name: numpy.arange(i * 1000, i * 1000 + numpy.prod(shape), dtype="<f4").reshape(shape)
             for i, (name, shape) in enumerate(SHAPES.items())}
    nodes = make_nodes(6, settings={"data": {"security": "none"}})
    for rank, node in enumerate("abcd"):
        shards = {name: tensor if name == "h.norm" else numpy.split(tensor, 4)[rank] for name, tensor in whole.items()}
        nodes[node].ctl("load", "-q", "llama-fsdp4", write_safetensors(
            tmp_path / "m.safetensors", [(name, "F32", list(shard.shape), shard.tobytes()) for name, shard in shards.items()]))
    (split,) = literals("weightctl.1", "VERBS")
    (tmp_path / "split.json").write_text(split)
    for rule in (rules := json.loads(split))["split"]:
        if "to" in rule:
            rule["from"] = rule["to"]
    (tmp_path / "tp.json").write_text(json.dumps(rules))
    run(script(RESHARD), nodes["a"].daemon.env | {"WEIGHTD_SYNC_SOCKET": nodes["a"].control_socket})
    for rank, node in enumerate("ef"):
        for name, tensor in whole.items():
            expected = tensor if name == "h.norm" else numpy.split(tensor, 2, axis=int("o_proj" in name))[rank]
            assert nodes[node].ctl("cat", "llama-tp2", name, text=False).stdout == expected.tobytes(), (node, name)
    for name, tensor in whole.items():
        assert nodes["a"].ctl("cat", "llama-8b", name, text=False).stdout == tensor.tobytes(), name


def test_recordings_of_two_nodes_are_merged(start, run, tmp_path):
    require("bpf")
    ends, last = {}, ""
    with tracing.pair() as pair, tracing.Tracer() as here, tracing.Tracer() as there:
        tracers = dict(zip("ab", (here, there)))
        for host, text in commands(MERGE):
            if not host:
                last = text
                continue
            client = tracers[host].client()
            ends[host] = client, start(f"exec {text}", environment(WEIGHTD_TRACE_SOCKET=tracers[host].socket))
            assert ends[host][1].stderr.readline() == "weightctl: recording\n"
        for (client, _), connection, peer in zip(ends.values(), pair, "ba"):
            client.tag(connection, sync="push", peer=peer)
            client.ask("begin", sync="push")
        pair[0].sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(pair[1].recv(65536))
        for client, recorder in ends.values():
            client.ask("end", sync="push")
            recorder.send_signal(signal.SIGINT)
            assert recorder.communicate(timeout=PATIENCE_S) == ("", "") and recorder.returncode == 0
    run(last, environment())
    events = json.loads((tmp_path / "push.json").read_text())
    assert len({e["pid"] for e in events if e["ph"] == "X"}) == 2, events


def test_acts_on_gpu_memory_are_printed(start):
    """Those of a tracer of which the test sends the answers: probes of CUDA see the whole machine."""
    def act(word, number):
        return {"kind": "act", "act": word, "number": number, "ns": 10**9, "took_ns": 38_000, "pid": 4711, "uid": 0, "comm": "trainer"}

    packets = [act("cuda_ipc_open", 1), act("sync_phase", 2), act("cuda_vmm_import", 3)]
    agent = FakeAgent(observe=[{"end": True}], acts=[{"end": True}, *packets])
    try:
        (_, text), = commands(LOG)
        follower = start(f"exec {text}", environment(WEIGHTD_TRACE_SOCKET=str(agent.path)))
        assert follower.stderr.readline() == "weightctl: following\n"
        lines = [follower.stdout.readline() for _ in range(2)]
        follower.send_signal(signal.SIGINT)
        assert follower.communicate(timeout=PATIENCE_S) == ("", "") and follower.returncode == 0
    finally:
        agent.close()
    assert [re.search(r"trainer  (\w+)", line)[1] for line in lines] == ["cuda_ipc_open", "cuda_vmm_import"], lines


# --- Other pages -------------------------------------------------------------------------------------


def test_a_private_weightd_has_a_model(model, run, tmp_path):
    (block,) = literals("weightd.8", "EXAMPLES")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(model)
    text = script(block).replace("/tmp/w.sock", f"{tmp_path}/w.sock")
    assert text.count(f"{tmp_path}/w.sock") == 2
    out = run(f"trap 'kill $! && wait $!' EXIT\n{text}", environment())
    assert re.search(r"^minilm +host +1 ", out, re.M), out


def test_the_probe_of_the_example_has_these_arguments():
    """Tested without bpftrace, which the next test needs."""
    require("sdt")
    (block,) = literals("weightd.8", "PROBES")
    probe, = re.findall(r"usdt:\S+/weightd:weightd:(\w+) ", script(block))
    printed = [int(n) for n in re.findall(r"\barg(\d)", block)]
    names = re.search(rf"^\*{probe}\*: (.*)$", (MAN / "weightd.8.scd").read_text(), re.M)[1].split(", ")
    assert [names[n] for n in printed] == ["name", "version", "process"]
    assert len(usdt_notes.probes(features.BUILD / "weightd")[probe]["arguments"].split()) == len(names)


def test_bpftrace_tells_who_attaches(make_daemon):
    require("sdt")
    require("bpftrace")
    tried = subprocess.run(["bpftrace", "-e", "BEGIN { exit(); }"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
    require("probes of bpftrace", f"bpftrace cannot attach here: {tried.stdout}", tried.returncode == 0)
    (block,) = literals("weightd.8", "PROBES")
    daemon = make_daemon()
    text = script(block).replace("/usr/sbin/weightd", str(features.BUILD / "weightd"))
    expected, seen = f"m@1 pid {os.getpid()}\n".encode(), b""
    with Wire(daemon.socket) as w, subprocess.Popen(["sh", "-c", f"exec {text}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                    stderr=subprocess.STDOUT) as told:
        try:
            publish(w)
            while expected not in seen:  # it does not say when it has attached
                w.detach(w.attach("m").lease)
                more = os.read(told.stdout.fileno(), 4096) if select.select([told.stdout], [], [], 0.1)[0] else None
                assert more != b"", f"bpftrace ended: {seen}"
                seen += more or b""
        finally:
            told.kill()


def test_the_bytes_of_a_connection_are_counted():
    require("bpf")
    (code,) = literals("weightd-trace.8", "EXAMPLES")
    for expected in '{"end": true}', '{"kind": "row", ..., "submitted": 1000, ...':
        code, n = re.subn(rf"^tracer\.recv\(65536\)( +# {re.escape(expected)})$", r"answers.append(json.loads(tracer.recv(65536)))\1",
                          code, flags=re.M)
        assert n == 1, expected
    answers = []
    with tracing.Tracer() as tracer, tracing.pair() as (connection, _):
        exec(compile(code.replace("/run/weightd-trace/trace.sock", tracer.socket), "weightd-trace(8)", "exec"),
             names := {"connection": connection, "answers": answers})
        names["tracer"].close()
    assert answers[0] == {"end": True} and (answers[1]["kind"], answers[1]["submitted"]) == ("row", 1000), answers


def test_the_sentence_on_plans_that_differ_is_one_that_the_library_returns():
    """A test in C makes such plans, and compares it."""
    (sentence,) = literals("weightd-train.7", "PLAN")
    assert f'"{sentence.strip()}"' in (ROOT / "tests/unit/test_train_plan_options.c").read_text()
