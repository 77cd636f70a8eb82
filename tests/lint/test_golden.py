"""Programs, scripts and other nodes rely on the interfaces in tests/lint/golden/: names in the source may change, these may not."""
import os
import re
import shutil

import pytest
from lint import golden, sources


def test_interfaces_are_as_recorded():
    if changed := golden.differences(sources.ROOT):
        pytest.fail("\n".join([
            "an interface has changed (- was removed, + is new):", *changed,
            "If that is meant, `python3 tests/lint/golden.py --renew` writes tests/lint/golden/*.txt anew: commit it with "
            "the change, and say in the message why."]), pytrace=False)


def test_a_program_is_the_longest_folder_that_holds_a_file():
    assert [golden.program_of(p) for p in ("server/slot.c", "server/base/loop.c", "server/sync/net/tls.c", "bpf/tcp/ring.c",
                                           "server/sync/tcp/main.c", "libclient/weightctl/verbs/ls.c", "tests/unit/x.c")] == [
        "weightd", "shared", "sync", "trace", "engines", "weightctl", None]


def test_literals_are_those_of_the_compiler():
    text = ('#include "a/b.h"\n/* "no" */ f("is" /* and */ "-one", x ? "key" : "a sentence", \'"\', "%s_ns",'
            ' "{\\"first\\": %u, \\"second\\":1}");\n'
            'static_assert(sizeof(x) == 8, "asserted");')
    assert golden.words([text]) == {"is-one", "key", "first", "second", "%s_ns"}


@pytest.fixture
def tree(tmp_path):
    """Links to the sources: a test replaces those that it changes."""
    top = tmp_path / "sync"  # the name of a folder inside
    for folder in ("ipc", "server", "bpf", "libclient", "packaging"):
        shutil.copytree(sources.ROOT / folder, top / folder, copy_function=os.symlink,
                        ignore=shutil.ignore_patterns("__pycache__"))
    return top


def change(tree, folder, before, after):
    """Replaces the first occurrence in the folder."""
    for path in sorted((tree / folder).rglob("*.*")):
        if path.is_file() and before in (text := path.read_text(errors="ignore")):
            path.unlink()
            path.write_text(text.replace(before, after, 1))
            return path
    raise AssertionError(f"{folder} has no {before}")


CHANGES = [  # folder, text, new text, the line that reports it
    ("server/sync", '"corrupt_bytes"', '"spoilt_bytes"', "words [sync] + spoilt_bytes"),
    ("server/sync", '"cannot-repair"', '"no-repair"', "words [sync] + no-repair"),
    ("server", '"WEIGHTD_RESULT"', '"RESULT"', "words [weightd] - WEIGHTD_RESULT"),
    ("server", '"90a8189f634c44f296c94269602a6307"', '"90a8189f634c44f296c94269602a6308"',
     "records [weightd] + message create 90a8189f634c44f296c94269602a6308"),
    ("bpf", '{\\"op\\":', '{\\"operator\\":', "words [trace] + operator"),
    ("bpf", '"WEIGHTD_NCCL_VERBOSE"', '"NCCL_VERBOSE"', "words [trace] - WEIGHTD_NCCL_VERBOSE"),
    ("libclient/weightctl", '"wait-all", no', '"wait-all", required', "commands [weightctl] - sync push: "),
    ("libclient/weightctl", '.name = "tensors"', '.name = "table"', "commands [weightctl] + table: "),
    ("server", '"socket-mode", required', '"mode-of-socket", required', "commands [weightd] + --mode-of-socket=ARG"),
    ("ipc", "WIRE_ABORT = 5", "WIRE_ABORT = 50", "formats [ipc: wire.h] + enum wire_op"),
    ("ipc", "uint64_t serial; /*", "uint32_t serial; /*", "formats [ipc: wire.h] + struct wire_header"),
    ("server", "MANIFEST_ABI 3", "MANIFEST_ABI 4", "formats [server: manifest.h] - #define MANIFEST_ABI 3"),
    ("libclient", "int timeout_ms, uint64_t *ret_version", "int timeout_ms, uint32_t *ret_version", "library [weightd.h] + int weightd_"),
    ("libclient", "\tweightd_attach;", "\tweightd_attach_to;", "library [libweightd.map] + weightd_attach_to"),
    ("libclient/python", 'def ping(socket: str | None', 'def ping(path: str | None', "python [weightd] + ping(path: "),
    ("packaging", "#keep = 2", "#keep = 3", "settings [weightd.conf] + [defaults] keep = 3"),
]


def test_each_kind_of_change_is_seen(tree):
    for folder, before, after, _ in CHANGES:
        change(tree, folder, before, after)
    found = golden.differences(tree)
    missed = [row for row in CHANGES if not any(line.startswith(row[-1]) for line in found)]
    assert missed == [], found


def test_moved_files_renamed_identifiers_and_other_sentences_are_not(tree):
    (tree / "server/sync/rooms").mkdir()
    for path in sorted((tree / "server/sync").glob("*.[ch]")):
        text = re.sub(r"\bagent_", "daemon_", path.read_text())
        text = re.sub(r'"[^"\n]* [^"\n]* [^"\n%\\]*"(?=[,)])', '"another sentence here"', text)
        name = path.name if path.stem == "frame" else f"x_{path.name}"  # frame.h is looked for by its name
        (tree / "server/sync/rooms" / name).write_text(text.replace("/*\n", "/*\n * Words\n"))
        path.unlink()
    (tree / "bpf/room").mkdir()
    for path in (tree / "bpf").glob("*.*"):
        path.rename(tree / "bpf/room" / path.name)
    # A part of one program becomes a base of several.
    (tree / "bpf/room/rows.c").rename(tree / "server/base/rows_of_trace.c")
    assert golden.differences(tree) == []
