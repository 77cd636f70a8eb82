"""The README's tour and snippets, and those of man pages, run as they are printed."""
import json
import os
import re
import shutil
import subprocess
import textwrap
import sys

import pytest
from integration.examples.pages import MAN, literals
from lib.daemon import environment
from lib.features import ROOT, TORCH2, require
from lib.nodes import claim_net

README = (ROOT / "README.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)[1]


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def without_figures(text):
    """Times, rates, paddings and the room of a store differ; everything else is printed as promised."""
    text = re.sub(r"^(STORE +\d+/)\d+$", r"\1N", text, flags=re.M)
    text = re.sub(r"\d+(\.\d+)? (ms|s|[kMGT]?B/s)\b", "N", text)
    return re.sub(r" +", " ", text)


TOUR = "Five minutes", "Restarts"


def tour():
    """(command, expected output) of the tour, without building, starting and stopping for good."""
    steps = []
    for block in (block for title in TOUR for block in blocks("bash", section(title))):
        for command, output in re.findall(r"^((?!# ).*)\n((?:# .*\n)*)", block, re.M):
            steps.append((command, re.sub("^# ", "", output, flags=re.M)))
    return [s for s in steps if not re.match(r"make |export |weightd |kill \$!", s[0])]


def exported(name):
    """Its value in the tour."""
    return re.search(rf"^export .*\b{name}=(\S+)", README, re.M)[1].replace("$PWD", str(ROOT))


RUN = {  # (section, language of its blocks): the test that runs them
    ("", "text"): "test_the_first_lines_run_as_they_are_printed",
    ("Two commands", ""): "tests/bare/test_bare.py",
    ("Two commands", "text"): "tests/integration/examples/test_demo.py",
    ("Five minutes", "bash"): "test_the_tour_can_be_pasted",
    ("Five minutes", "python"): "test_the_tour_prints_what_the_readme_shows",
    ("Install", "bash"): "tests/systemd/test_readme_service.py",
    ("GPUs", "sh"): "test_the_section_on_gpus_runs_on_a_stand_in",
    ("Restarts", "bash"): "test_the_tour_can_be_pasted",
    ("Nodes", "bash"): "test_the_section_on_nodes_brings_a_version_to_another",
    ("Tracing", "shell"): "tests/systemd/test_sync.py",
    ("PyTorch", "python"): "test_the_section_on_torch_runs_with_todays_models",
    ("Training", "python"): "test_the_trainers_in_python_find_the_same_line_and_save",
    ("Training", "shell"): "test_the_trainers_in_python_find_the_same_line_and_save",
}


def test_each_block_is_run_by_a_test():
    found = {(title, language) for title, text in re.findall(r"^##? (.*)\n((?:(?!^## ).*\n)*)", README, re.M)
             for language in re.findall(r"^```(.*)\n(?:(?!```).*\n)*```$", text, re.M)}
    assert {(title if title != "weightd" else "", language) for title, language in found} == set(RUN)
    for test in RUN.values():
        assert (ROOT / test).exists() if "/" in test else test in globals(), test


def test_the_first_lines_run_as_they_are_printed(daemon, build, model, tmp_path):
    """With a program that lists what it is given in the place of chat.py."""
    (block,) = blocks("text", README.partition("\n## ")[0])
    for name, target in ("models/llama", model), ("models/tuned", model), ("bin/python", sys.executable):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "chat.py").write_text("import os, sys\nprint(*sorted(os.listdir(sys.argv[1])))")
    env = daemon.env | {"PATH": f"{tmp_path}/bin:{build}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-eu"], input=block, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "\nconfig.json model.safetensors tokenizer.json vocab.txt\n" in done.stdout
    assert daemon.ctl("ls", "--noheadings", "-o", "name,version").stdout.split() == ["llama", "2"]


def run_python(daemon, snippet, python=sys.executable):
    env = daemon.env | {"PYTHONPATH": exported("PYTHONPATH")}
    done = subprocess.run([python, "-c", snippet], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tour_prints_what_the_readme_shows(make_daemon, build, model):
    require("numpy")
    daemon = make_daemon("--keeper")
    env = daemon.env | {"PATH": f"{build}:{os.environ['PATH']}"}
    outputs = []
    for command, expected in tour():
        if command.startswith("weightctl rm"):  # the first version is still there
            for snippet in blocks("python", section("Five minutes")):
                outputs.append(run_python(daemon, snippet))
            daemon.ctl("rm", "mine")
        done = subprocess.run(["bash", "-c", command.replace("build/model", str(model))], env=env,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert without_figures(done.stdout) == without_figures(expected), command
    assert outputs[0].startswith("F32 (384,) [")
    assert outputs[1] == "1 1048576.0\n"
    assert [row.split()[0] for row in daemon.ctl("ls", "--noheadings").stdout.splitlines()] == ["minilm"]


def test_the_tour_can_be_pasted(build, model, tmp_path):
    """All shell blocks of its sections into one shell, which stops at the first command that fails."""
    require("jq", "no jq (apt-get install jq)", bool(shutil.which("jq")))
    script = "".join(block for title in TOUR for block in blocks("bash", section(title)))
    for shown, here in (("make all model\n", ""), ("$PWD/build", str(build)), ("/tmp/tour.sock", str(tmp_path / "tour.sock")),
                        ("build/model", str(model))):
        assert shown in script, shown
        script = script.replace(shown, here)
    done = subprocess.run(["bash", "--norc", "-eu"], input="trap 'kill $(jobs -p) || true' EXIT\n" + script, cwd=ROOT,
                          env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.count("matches digest xxh3:") == 2, done.stdout + done.stderr
    assert not (tmp_path / "tour.sock").exists()


@pytest.mark.plain
def test_the_section_on_torch_runs_with_todays_models(daemon, model):
    """The README has the first of the snippets of weightd-python(3). Those on transformers copy nothing."""
    require("torch2")
    daemon.ctl("load", "minilm", model)
    snippets = literals("weightd-python.3", "MODULES OF TORCH")
    assert [block.split() for block in blocks("python", section("PyTorch"))] == [snippets[0].split()]
    snippets = "".join(snippets).replace('"build/model"', repr(str(model)))
    snippets += "".join(literals("weightd-python.3", "MODELS OF TRANSFORMERS"))
    snippets += "print(type(replica).__name__, bool(weightd.torch.is_bound(replica)))"
    printed = run_python(daemon, snippets, TORCH2).splitlines()
    assert "embeddings.position_ids" in printed[0] and printed[1:] == ["True", "0", "BertModel True"], printed


def test_the_c_snippet_compiles_and_runs(daemon, model, tmp_path):
    """With the plain library: the snippet is a program of a user, not of ours."""
    require("library")
    (source,) = literals("libweightd.3", "EXAMPLE")
    (tmp_path / "tour.c").write_text(source)
    command = re.search(r"\*(cc\s+tour\.c\s[^*]*-rpath[^*]*)\*", (MAN / "libweightd.3.scd").read_text())[1]
    command = " ".join(command.split()).replace("tour.c", str(tmp_path / "tour.c"))
    subprocess.run(["bash", "-c", f"{command} -Wall -Werror -o {tmp_path}/tour"], cwd=ROOT, check=True)
    refused = subprocess.run([tmp_path / "tour"], env=daemon.env, capture_output=True, text=True)
    assert refused.returncode == 1 and "minilm" in refused.stderr
    daemon.ctl("load", "minilm", model)
    done = subprocess.run([tmp_path / "tour"], env=daemon.env, capture_output=True, text=True)
    assert re.fullmatch(r"F32 1536 bytes, the first is -?[\d.e-]+\n", done.stdout), (done.stdout, done.stderr)


def run_ranks(daemon, command, **kw):
    """Returns the output of the ranks. They leave no job."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, **{"env": daemon.env, **kw})
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    assert jobs == []
    return done.stdout


def test_the_trainer_in_c_finds_the_line(daemon, build, line):
    assert run_ranks(daemon, [build / "weightctl", "train", "run", "-n", "3", "--", line]) == "2.00 x + 1.00\n"


def test_the_trainer_in_c_finds_the_line_on_two_nodes(build, line, tmp_path):
    """By the commands of weightd-train(7), in two network namespaces."""
    require("netns")
    script = ROOT / "tests/demo/two-nodes"
    (commands,) = literals("weightd-train.7", "NODES")
    for command in commands.replace("\\\n\t", "").splitlines():
        assert command.replace("./line", '"$@"') in script.read_text(), command
    with subprocess.Popen([script, line], env=environment(WEIGHTD_BUILD=str(build), TMPDIR=str(tmp_path)), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as nodes:
        out, err = nodes.communicate(timeout=100)
    assert (nodes.returncode, out) == (0, "2.00 x + 1.00\n"), out + err
    # Another run of the script may be at work beside this one.
    assert f"two-nodes-{nodes.pid}-" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


@pytest.mark.plain
def test_a_rank_that_dies_is_restarted_by_the_command_of_the_page(daemon, build, line, tmp_path):
    """That of weightd-python(3), with the trainer in C."""
    page = (MAN / "weightd-python.3.scd").read_text()
    command = re.search(r"^\*(weightctl train run .* -- python3 train\.py)\* starts two ranks", page, re.M)[1]
    (tmp_path / "train.py").write_text(f"""import os, signal
if os.environ["RANK"] == "1" and not os.path.exists("died"):
    os.mkdir("died")
    os.kill(os.getpid(), signal.SIGKILL)
os.execv({str(line)!r}, ["line"])
""")
    env = daemon.env | {"PATH": f"{build}:{os.environ['PATH']}"}
    assert run_ranks(daemon, ["bash", "-c", command], env=env, cwd=tmp_path) == "2.00 x + 1.00\n"
    assert (tmp_path / "died").exists()


LOOP = """
import os

Model = lambda: torch.nn.Linear(1, 1)
batch = lambda step: torch.full((4, 1), float(step % 7))
criterion = lambda y: y.float().square().mean()
"""
SAVES = """
def toward_zero(line):
    loss = line(torch.ones(1, 8)).square().mean()
    loss.backward()
    return loss

os.chdir("page")
for n_saved in 0, 100:  # the second job loads the checkpoint of the first one
    line = torch.nn.Linear(8, 1)
    train.shard(line, mesh, job=f"saves-{{n_saved}}")
    with train.SGD(line, lr=1e-2) as opt:
{}
        assert opt.step_number == 100, opt.step_number
"""


def test_the_trainers_in_python_find_the_same_line_and_save(daemon, build, tmp_path):
    """
    That of weightd-train(7), the loop of the README, which needs definitions, and those of weightd-python(3): in one start of
    ranks, by the README's command, each with a job of its own.
    """
    require("torch2")

    def changed(text, *changes):
        for shown, here in changes:
            assert shown in text, shown
            text = text.replace(shown, here)
        return text

    (commands,) = blocks("shell", section("Training"))
    command, demo = commands.splitlines()
    assert demo == "make demo-train", "test_demo_train.py runs that"
    (loop,) = blocks("python", section("Training"))
    trainer, saves = literals("weightd-python.3", "TRAINING")
    (other_types,) = literals("weightd-python.3", "TRAINING IN OTHER TYPES")
    saves = changed(saves, ("1000", "100"), ("...", "opt.step(toward_zero(line))"))
    (tmp_path / "train.py").write_text("".join((
        literals("weightd-train.7", "EXAMPLE")[1], LOOP, changed(loop, ("(1000)", "(100)"), ("Model(), mesh", 'Model(), mesh, job="loop"')),
        changed(trainer, ("model, mesh", 'model, mesh, job="page"')), other_types, SAVES.format(textwrap.indent(saves, "        ")))))
    (tmp_path / "page").mkdir()
    path = f"{build}:{os.path.dirname(TORCH2)}:{os.environ['PATH']}"
    env = daemon.env | {"PYTHONPATH": exported("PYTHONPATH"), "PATH": path, "OMP_NUM_THREADS": "1"}
    out = run_ranks(daemon, ["bash", "-c", command], env=env, cwd=tmp_path)
    assert out.count("2.00 x + 1.00") == 1, out
    # All write to one pipe, where the end of a line may come after the start of another one.
    assert sorted(re.findall(r"rank \d: \d+ steps", out)) == [f"rank {rank}: 300 steps" for rank in range(4)], out
    assert "sums" in daemon.ctl("ls", "--noheadings").stdout
    for folder in tmp_path, tmp_path / "page":
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000000100"]


def test_the_section_on_nodes_brings_a_version_to_another(build, model, tmp_path):
    """Its commands, on addresses that no other test has."""
    require("sync")
    (script,) = blocks("bash", section("Nodes"))
    script = re.sub("^make .*\n", "trap 'kill $(jobs -p) || true' EXIT\n", script, flags=re.M)
    env = environment(PATH=f"{build}:{os.environ['PATH']}", TMPDIR=str(tmp_path), model=str(model))
    net, claim = claim_net()
    with claim:
        script = script.replace("127.0.0.", f"{net}.")
        done = subprocess.run(["bash", "-euc", script], env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^minilm 1\.1 on 2 of 2 nodes in ", done.stdout, re.M), done.stdout + done.stderr
    assert re.search(r"^minilm@1 on host: matches digest xxh3:", done.stdout, re.M), done.stdout
    assert re.search(r" push minilm 1\.1 +committed +2 ", done.stdout), done.stdout


def test_the_section_on_gpus_runs_on_a_stand_in(make_daemon, gpu, build, model):
    """Its commands; of the Python of weightd-python(3), which needs a torch that has a GPU, only that it is Python."""
    daemon = make_daemon(env=gpu.env)
    env = daemon.env | {"PATH": f"{build}:{os.environ['PATH']}"}
    (commands,), (snippet,) = blocks("sh"), literals("weightd-python.3", "BUFFERS ON A GPU")
    for command in commands.splitlines():
        done = subprocess.run(["bash", "-c", command.replace("build/model", str(model))], env=env,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "cuda:0" in done.stdout, f"{command}: {done}"
    compile(snippet, "weightd-python(3)", "exec")


@pytest.mark.parametrize("page", sorted({f"{m[1]}.{m[2]}.scd" for m in re.finditer(r"`([\w.-]+)\((\d)\)`", README)}))
def test_the_pages_that_the_readme_names_exist(page):
    assert (MAN / page).exists()


@pytest.mark.parametrize("picture", re.findall(r"!\[[^]]*\]\(([^)]*)\)", README))
def test_the_pictures_that_the_readme_shows_exist(picture):
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
