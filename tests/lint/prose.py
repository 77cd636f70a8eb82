"""
What STYLE asks of prose, in section Prose: a report, which refuses nothing yet.

prose.py prints counts of each folder; prose.py PATH... prints each place in these files and folders.
"""
import io
import pathlib
import re
import sys
import tokenize
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("ipc", "server", "libclient", "bpf", "tests", "packaging", ".ci")
RULES = {
    "opening": re.compile(r"\A\W*(?:Of|Who|What|Whether|To whom)\b"),
    "nobody": re.compile(r"\b(?:nobody|whoever)\b", re.I),
    "person": re.compile(r"\b(?:he|him|his)\b", re.I),
    "verb": re.compile(r"\b(?:tell|tells|told|telling|hear|hears|heard|say|says|said|saying|bring|brings|brought|bringing|"
                       r"taken? up|takes up|took up|knows?|knew|known|comes?|came|coming|goes|gone|went)\b", re.I),
}
C_TOKEN = re.compile(r'/\*.*?\*/|(?://[^\n]*(?:\n[ \t]*(?=//))?)+|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def c_comments(text):
    for m in C_TOKEN.finditer(text):
        if m.group().startswith("/"):
            yield text.count("\n", 0, m.start()) + 1, re.sub(r"^[ \t]*(?:/?\*+/?|//)|\*/\Z", "", m.group(), flags=re.M).strip()


def hash_comments(text):
    """Blocks of lines that begin with #."""
    for m in re.finditer(r"(?:^[ \t]*#(?!!).*\n?)+", text, re.M):
        yield text.count("\n", 0, m.start()) + 1, re.sub(r"^[ \t]*#+", "", m.group(), flags=re.M).strip()


def python_comments(text):
    """Comments in blocks, and strings that are statements."""
    block, line, before = [], 0, None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            line = line if block else token.start[0]
            block.append(token.string.lstrip("#"))
            continue
        if block and token.type != tokenize.NL:
            yield line, "\n".join(block).strip()
            block = []
        if token.type == tokenize.STRING and before in (None, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            yield token.start[0], token.string.strip("\"'rbf \n")
        if token.type not in (tokenize.NL, tokenize.ENCODING):
            before = token.type


def paragraphs(text):
    for m in re.finditer(r"(?:^.*\S.*\n?)+", text, re.M):
        yield text.count("\n", 0, m.start()) + 1, m.group().strip()


def reader(path):
    if path.suffix in (".c", ".h", ".cc", ".cu"):
        return c_comments
    if path.suffix in (".scd", ".md"):
        return paragraphs
    with open(path, "rb") as f:
        first = f.readline()
    if path.suffix == ".py" or b"python" in first:
        return python_comments
    return hash_comments if path.name == "Makefile" or first.startswith(b"#!") or path.suffix in (".conf", ".service") else None


def broken(comment):
    """(rule, the words) of each rule that a comment breaks."""
    return [(rule, m.group().strip()) for rule, pattern in RULES.items() for m in pattern.finditer(comment)]


def files(*paths):
    for path in paths or [*FOLDERS, "README.md", "Makefile"]:
        path = ROOT / path
        yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def places(*paths):
    """(path, line, rule, words)."""
    for path in files(*paths):
        if "corpus" in path.parts or "__pycache__" in path.parts or (read := reader(path)) is None:
            continue
        for line, comment in read(path.read_text()):
            for rule, words in broken(comment):
                yield path.relative_to(ROOT), line, rule, words


def main(paths):
    if paths:
        for path, line, rule, words in places(*paths):
            print(f"{path}:{line}: {rule}: {words}")
        return
    counts = {}
    for path, _, rule, _ in places():
        folder = str(pathlib.Path(*path.parts[:2])) if len(path.parts) > 2 else path.parts[0]
        counts.setdefault(folder, Counter())[rule] += 1
    print(f"\nprose that STYLE asks to change{''.join(f'{rule:>9}' for rule in RULES)}")
    for folder, n in counts.items():
        print(f"{folder:31}{''.join(f'{n[rule]:9}' for rule in RULES)}")
    total = sum(counts.values(), Counter())
    print(f"{'in all (tests/lint/prose.py PATH)':31}{''.join(f'{total[rule]:9}' for rule in RULES)[2:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
