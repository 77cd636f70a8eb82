"""
Places that break the rules of STYLE, section Prose.

prose.py prints a count for each folder; prose.py PATH... prints each place in these files and folders, by rule:

    wh        a comment begins with a word of WH; `make lint` fails
    text      a help text, a log line or an error of a program begins so; `make lint` fails
    opening   a comment begins with of, by, for or where; figures.py bounds the share of these and the above
    who       a pronoun of persons in a comment; figures.py bounds their number in 1,000 words
    nobody, person, verb   words that STYLE advises against; only counted
"""
import ast
import functools
import pathlib
import re
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lint import sources  # noqa: E402

ROOT = sources.ROOT
FOLDERS = ("ipc", "server", "libclient", "bpf", "tests", "packaging", ".ci", ".githooks")
PRODUCT = ("ipc/", "server/", "libclient/", "bpf/")  # users read the texts of these
WH = r"(?:to +whom|who|whom|whose|what|whether|which)\b"
RULES = {
    "wh": re.compile(rf"\A\W*{WH}", re.I),
    "opening": re.compile(r"\A\W*(?:of|by|for|where)\b", re.I),
    "who": re.compile(r"\b(?:who|whom|whose)\b", re.I),
    "nobody": re.compile(r"\b(?:nobody|whoever)\b", re.I),
    "person": re.compile(r"\b(?:he|him|his)\b", re.I),
    "verb": re.compile(r"\b(?:tell|tells|told|telling|hear|hears|heard|say|says|said|saying|bring|brings|brought|bringing|"
                       r"taken? up|takes up|took up|knows?|knew|known|comes?|came|coming|goes|gone|went)\b", re.I),
}
# A line of a text, after the option that it explains or the name of its subject.
TEXT = re.compile(rf"(?: *(?:-\w, *)?--[\w-]+\S*(?: [A-Z]\S*)* {{2,}}|(?:%[^\s,]* *)*:? ?){WH}[ ,]", re.I)

C_TOKEN = re.compile(r'/\*.*?\*/|(?://[^\n]*(?:\n[ \t]*(?=//))?)+|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
PYTHON_TOKEN = re.compile(r'(?s:"""(?:\\.|.)*?""")|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?m:(?:^[ \t]*#.*\n?)+)|#[^\n]*')


def c_comments(text):
    for m in C_TOKEN.finditer(text):
        if m.group().startswith("/"):
            yield text.count("\n", 0, m.start()) + 1, re.sub(r"^[ \t]*(?:/?\*+/?|//)|\*/\Z", "", m.group(), flags=re.M).strip()


def hash_comments(text):
    """Blocks of lines that begin with #."""
    for m in re.finditer(r"(?:^[ \t]*#(?!!).*\n?)+", text, re.M):
        yield text.count("\n", 0, m.start()) + 1, re.sub(r"^[ \t]*#+", "", m.group(), flags=re.M).strip()


def python_comments(text):
    """Comments in blocks, and docstrings."""
    for m in PYTHON_TOKEN.finditer(text):
        token, line = m.group(), text.count("\n", 0, m.start()) + 1
        if token.lstrip()[0] == "#" and not token.startswith("#!"):
            yield line, re.sub(r"^[ \t]*#+", "", token, flags=re.M).strip()
        elif token.startswith('"""') and text[:m.start()].rstrip()[-1:] in ("", ":"):
            yield line, token.strip("\" \n")


def c_texts(text):
    """(line, text) of each string, joined as the compiler does."""
    text = re.sub(r"^[ \t]*#[ \t]*include.*$", "", text, flags=re.M)
    found, end = [], None
    for m in sources.COMMENT_OR_STRING.finditer(text):
        if m.group()[0] == "/":
            continue
        between = "" if end is None else re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", "", text[end:m.start()], flags=re.S)
        if m.group()[0] == '"' and end is not None and not between.strip():
            found[-1][1] += m.group()[1:-1]
        elif m.group()[0] == '"':
            found.append([text.count("\n", 0, m.start()) + 1, m.group()[1:-1]])
        end = m.end() if m.group()[0] == '"' else None
    return [(line, one.replace("\\n", "\n").replace("\\t", "\t")) for line, one in found]


def python_texts(text):
    """(line, text) of each string that is no docstring; an f-string has %s in place of its values."""
    tree = ast.parse(text)
    parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    parts |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if id(n) in parts:
            continue
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            yield n.lineno, n.value
        elif isinstance(n, ast.JoinedStr):
            yield n.lineno, "".join(v.value if isinstance(v, ast.Constant) else "%s" for v in n.values)


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


def broken_texts(path, text):
    """(line, "text", the words) of each text that a user reads and that begins with a wh-word."""
    read = c_texts if path.suffix in (".c", ".h", ".cc") else python_texts if path.suffix == ".py" else None
    if read is None or not str(path.relative_to(ROOT)).startswith(PRODUCT):
        return
    for at, one in read(text):
        for n, line in enumerate(one.split("\n")):
            if TEXT.match(line):
                yield at + n, "text", line.strip()[:60]


def files(*paths):
    for path in paths or [*FOLDERS, "README.md", "Makefile"]:
        path = ROOT / path
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            if not {"corpus", "__pycache__"} & set(file.relative_to(ROOT).parts) and reader(file):
                yield file


@functools.cache
def comments(path):
    """(line, comment, rules that it breaks)."""
    return [(line, comment, broken(comment)) for line, comment in reader(path)(path.read_text())]


def places(*paths):
    """(path, line, rule, words)."""
    for path in files(*paths):
        for line, _, rules in comments(path):
            for rule, words in rules:
                yield path.relative_to(ROOT), line, rule, words
        for line, rule, words in broken_texts(path, path.read_text()):
            yield path.relative_to(ROOT), line, rule, words


def rates():
    """(comments that break "wh" or "opening", of 100; words that break the rule of pronouns, of 1,000)."""
    n, words, counts = 0, 0, Counter()
    for path in files():
        if reader(path) is paragraphs:
            continue
        for _, comment, rules in comments(path):
            n += 1
            words += len(re.findall(r"\b[A-Za-z][\w'-]*", comment))
            counts.update(rule for rule, _ in rules)
    return 100 * (counts["wh"] + counts["opening"]) / n, 1000 * counts["who"] / words


def main(paths):
    if paths:
        for path, line, rule, words in places(*paths):
            print(f"{path}:{line}: {rule}: {words}")
        return
    rules, counts = (*RULES, "text"), {}
    for path, _, rule, _ in places():
        folder = str(pathlib.Path(*path.parts[:2])) if len(path.parts) > 2 else path.parts[0]
        counts.setdefault(folder, Counter())[rule] += 1
    print(f"{'prose that STYLE asks to change':31}{''.join(f'{rule:>9}' for rule in rules)}")
    for folder, n in counts.items():
        print(f"{folder:31}{''.join(f'{n[rule]:9}' for rule in rules)}")
    total = sum(counts.values(), Counter())
    print(f"{'in all (tests/lint/prose.py PATH)':31}{''.join(f'{total[rule]:9}' for rule in rules)[2:]}")
    openings, who = rates()
    print(f"{openings:.1f} % of comments have such an opening; who, whom, whose: {who:.1f} in 1,000 words")


if __name__ == "__main__":
    main(sys.argv[1:])
