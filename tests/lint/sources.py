"""The C sources as the lint tests see them."""
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def files(*folders, suffixes=(".c", ".cc", ".h")):
    """Paths relative to the top, such as PosixPath('ipc/wire.h')."""
    found = []
    for folder in folders or ("ipc", "server", "libclient", "bpf", "tests"):
        found += [p for s in suffixes for p in (ROOT / folder).rglob(f"*{s}")]
    return sorted(p.relative_to(ROOT) for p in found)


@functools.cache
def text(path):
    return (ROOT / path).read_text()


def _blank(match, keep_strings):
    token = match.group()
    if token[0] == "/":
        return re.sub(r"[^\n]", " ", token)
    return token if keep_strings else token[0] + " " * (len(token) - 2) + token[-1]


@functools.cache
def code(path, keep_strings=False):
    """The text with comments (and the insides of strings) blanked, line by line as before."""
    return COMMENT_OR_STRING.sub(lambda m: _blank(m, keep_strings), text(path))


def matches(pattern, paths, keep_strings=False):
    """"file:line: what" of each match in the code of the files."""
    found = []
    for path in map(pathlib.Path, paths):
        body = code(path, keep_strings)
        for m in re.finditer(pattern, body):
            found.append(f"{path}:{body.count(chr(10), 0, m.start()) + 1}: {m.group().strip()}")
    return found
