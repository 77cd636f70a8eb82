"""The wheel in fresh environments of Python, as a user without rights, and beside the weightd of other releases."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest
from integration.examples.pages import literals
from integration.examples.test_readme import blocks, section, tour, without_figures
from lib import earlier, features
from lib.daemon import Daemon, environment

WHEEL = os.environ.get("WEIGHTD_WHEEL")
AUDITWHEEL = features.ROOT / "build/wheel-tools/bin/auditwheel"
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
OWN = {"libweightd.so.0"}
USER = 65534
PATIENCE_S = 300
TORCH2 = features.ROOT / "build/torch2"

pytestmark = pytest.mark.skipif(not WHEEL, reason="no wheel (make check-wheel)")


def interpreters():
    """{"3.9": its path} of those of this machine that torch has wheels for, also in the folders of pyenv and uv."""
    found = {"%d.%d" % sys.version_info[:2]: sys.executable}
    for minor in range(9, 15):
        name = f"python3.{minor}"
        others = sorted(pathlib.Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")) + sorted(
            pathlib.Path.home().glob(f".local/share/uv/python/*/bin/{name}"))
        for path in filter(None, [shutil.which(name), *map(str, others)]):
            if subprocess.run([path, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:  # pyenv has one of each name that does not work
                found.setdefault(f"3.{minor}", path)
    return found


class Environment:
    """
    A virtual environment with the wheel, in a folder of a user without rights where the interpreter is one for all users.

    bin     its folder of programs
    run     runs a program of it, as that user
    """

    def __init__(self, python, folder):
        self.folder = folder
        readable = os.geteuid() == 0 and not str(pathlib.Path(python).resolve()).startswith(str(pathlib.Path.home()))
        self.user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if readable else []
        if self.user:
            os.chown(folder, USER, USER)
        self.bin = folder / "venv/bin"
        wheel = shutil.copy(WHEEL, folder)
        self.run(python, "-m", "venv", folder / "venv")
        self.run(self.bin / "pip", "install", "-q", "--disable-pip-version-check", "--no-index", wheel)

    def run(self, *command, env=None, check=True, **kw):
        env = {k: v for k, v in environment().items() if k not in ("WEIGHTD_LIBRARY", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")} | {
            "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder)} | (env or {})
        done = subprocess.run([*self.user, *map(str, command)], env=env, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_S, **kw)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def python(self, code, **kw):
        return self.run(self.bin / "python", "-c", code, **kw)

    def borrow(self, packages):
        """Makes the packages of another environment visible behind its own."""
        [folder] = (self.folder / "venv/lib").glob("python3*/site-packages")
        (folder / "others.pth").write_text(f"{packages}\n")

    def daemon(self, *args):
        """The weightd of the wheel, of that user, as is its folder."""
        as_user = ["sh", "-c", f'chown {USER} "${{3%/*}}" && exec {shlex.join(self.user)} "$@"', "sh"] if self.user else ()
        return Daemon(*args, prefix=as_user, program=self.bin / "weightd")


@pytest.fixture(scope="module", params=interpreters().items(), ids=lambda item: item[0])
def environment_of(request):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-wheel-"))
    try:
        yield Environment(request.param[1], folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def venv():
    """One of the Python that runs the tests."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-wheel-"))
    try:
        yield Environment("/usr/bin/python3", folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def served(venv):
    """The weightd of the wheel."""
    daemon = venv.daemon("--keeper")
    try:
        yield daemon
    finally:
        daemon.close()


def test_auditwheel_finds_the_tag_to_be_true():
    done = subprocess.run([AUDITWHEEL, "show", WHEEL], check=True, capture_output=True, text=True)
    tag = re.search(r"manylinux_\d+_\d+_\w+(?=\.whl$)", WHEEL)[0]
    said = " ".join(done.stdout.split())
    assert f'is consistent with the following platform tag: "{tag}"' in said and tag.startswith("manylinux_2_28_"), said


def test_all_else_is_linked_in(venv):
    [package] = (venv.folder / "venv/lib").glob("python3*/site-packages/weightd")
    for path in [*(venv.bin / name for name in ("weightd", "weightd-cuda", "weightctl")), *(package / "lib").iterdir()]:
        headers = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", headers))
        assert needed <= GLIBC | (OWN if path.parent.name == "lib" else set()), path


def test_the_library_and_the_programs_say_where_they_are(environment_of):
    release, library = environment_of.python("import weightd; print(weightd.__version__, weightd.__library__)").stdout.split()
    assert library.startswith(f"{environment_of.folder}/venv/lib") and library.endswith("/weightd/lib/libweightd.so.0")
    assert environment_of.run("weightd", "--version").stdout == f"weightd {release} ({environment_of.bin}/weightd)\n"
    daemon = environment_of.daemon()
    try:
        said = environment_of.run("weightctl", "ping", env={"WEIGHTD_SOCKET": daemon.socket}).stdout
        for key, value in (("RELEASE", release), ("PROGRAM", f"{environment_of.bin}/weightd"), ("LIBRARY", f"{environment_of.bin}/weightctl"),
                           ("LIBWEIGHTD", release)):
            assert re.search(rf"^{key} +{re.escape(value)}$", said, re.M), said
    finally:
        daemon.close()


def test_any_python_loads_publishes_and_reads(environment_of, model):
    """Without numpy, which has no wheel of its own here."""
    daemon = environment_of.daemon("--keeper")
    env = {"WEIGHTD_SOCKET": daemon.socket}
    try:
        environment_of.python(f"""
import weightd
assert weightd.load("minilm", {str(model)!r}).version == 1
with weightd.attach("minilm") as weights:
    weights.verify()
layout = weightd.Layout()
layout.add("w", "F32", (1024, 1024))
with weightd.create("mine", layout) as writer:
    view = writer["w"].memoryview().cast("B")
    view[:4] = b"abcd"
    view.release()
    assert writer.publish() == 1
with weightd.attach("mine") as weights:
    assert bytes(weights["w"].memoryview().cast("B")[:5]) == b"abcd\\0"
""", env=env)
        assert environment_of.run("weightctl", "verify", "minilm", env=env).stdout.startswith("minilm@1 on host: matches digest")
    finally:
        daemon.close()


def test_a_user_takes_the_tour_of_the_readme(venv, served, model):
    features.require("torch2")
    [packages] = (TORCH2 / "lib").glob("python3*/site-packages")
    venv.borrow(packages)
    env = {"WEIGHTD_SOCKET": served.socket}
    outputs = []
    for command, expected in tour():
        if command.startswith("weightctl rm"):  # the first version is still there
            outputs += [venv.python(snippet, env=env).stdout for snippet in blocks("python", section("Five minutes"))]
            venv.run("weightctl", "rm", "mine", env=env)
        done = venv.run("bash", "-c", command.replace("build/model", str(model)), env=env)
        assert without_figures(done.stdout) == without_figures(expected), command
    assert outputs[0].startswith("F32 (384,) [") and [float(n) for n in outputs[1].split()] == [1, 1024 * 1024]
    snippets = "".join(literals("weightd-python.3", "MODULES OF TORCH")).replace('"build/model"', repr(str(model)))
    printed = venv.python(snippets, env=env).stdout.splitlines()
    assert "embeddings.position_ids" in printed[0] and printed[1:] == ["True"], printed


# --- Beside other releases ----------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["tree", "earlier"])
def test_the_wheel_works_with_another_weightd(venv, model, program):
    """Calls that only the newer one has are refused with both releases, and both files."""
    if program == "earlier":
        earlier.require()
    file = (features.BUILD if program == "tree" else earlier.BUILD) / "weightd"
    daemon = Daemon(program=file)
    root = {"WEIGHTD_SOCKET": daemon.socket}
    try:
        subprocess.run([venv.bin / "weightctl", "load", "-q", "minilm", model], env=root, check=True)
        done = subprocess.run([venv.bin / "weightctl", "verify", "minilm"], env=root, check=True, capture_output=True, text=True)
        assert done.stdout.startswith("minilm@1 on host: matches digest xxh3:")
        code = "import weightd; weights = weightd.attach('minilm'); weights.verify(); print(weights.version, weightd.ping().program)"
        done = subprocess.run([venv.bin / "python", "-c", code], env=root, check=True, capture_output=True, text=True)
        assert done.stdout == f"1 {file.resolve()}\n"
        done = subprocess.run([venv.bin / "python", "-c", "import weightd; print(weightd.health().memory)"], env=root,
                              capture_output=True, text=True)
        if program == "earlier":
            assert re.search(rf"weightd [\d.]+ at {daemon.socket} \('?{file.resolve()}.* is too old to report its health.*"
                             rf"libweightd, [\d.]+ \({venv.folder}/venv/lib", done.stderr), done.stderr
        else:
            assert done.returncode == 0, done.stderr
    finally:
        daemon.close()


def test_an_earlier_library_works_with_the_weightd_of_the_wheel(venv):
    earlier.require()
    daemon = Daemon("--keeper", program=venv.bin / "weightd")
    try:
        with earlier.Client(daemon) as client:
            assert client.publish("m", 7, 2) == 1
            assert client.attach("m") == 1
            client.verify("m")
        assert "minilm" not in earlier.ctl(daemon, "ls").stdout and earlier.ctl(daemon, "ping").returncode == 0
    finally:
        daemon.close()


def test_a_version_that_an_earlier_library_cannot_read_is_refused_with_the_file_to_install(venv, model):
    earlier.require()
    daemon = Daemon("--keeper", program=venv.bin / "weightd")
    try:
        subprocess.run([venv.bin / "weightctl", "load", "-q", "m", model], env={"WEIGHTD_SOCKET": daemon.socket}, check=True)
        with earlier.Client(daemon) as client, pytest.raises(earlier.Refused) as refused:
            client.attach("m")
        assert re.search(rf"the libweightd of this program does not support; .* release [\d.]+, that of {venv.bin}/weightd", str(refused.value))
    finally:
        daemon.close()
