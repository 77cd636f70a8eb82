#!/usr/bin/env python3
"""
The interfaces of weightd, extracted from the source: they must not change while names and sentences change.

The result does not depend on the places of files, nor on identifiers inside a program. Each program has one sorted set
of lines, collected from all of its files. Moves and renames pass; a changed key, option, constant or symbol fails.

golden.py prints the lines that the tree adds to and removes from tests/lint/golden/*.txt; golden.py --renew accepts them.
"""
import ast
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lint import sources  # noqa: E402

FOLDER = pathlib.Path("tests/lint/golden")
C = (".c", ".h", ".cc")

# A file belongs to the program with the longest folder that holds it. Several programs link "shared".
PROGRAMS = {
    "shared": ("ipc", "server/base", "server/sync/base"),
    "weightd": ("server",),
    "sync": ("server/sync",),
    "engines": ("server/sync/engine", "server/sync/stream", "server/sync/tcp", "server/sync/gloo", "server/sync/nccl", "server/sync/local"),
    "trace": ("bpf",),
    "weightctl": ("libclient/weightctl",),
    "library": ("libclient",),
}

# Parts of sentences, no keys.
FRAGMENTS = {"an", "are", "behind", "beside", "es", "is", "it", "likewise", "of", "wrong"}

# Headers with an interface between processes or with files: structs, numbers and asserts. They are found by name.
FORMATS = {
    "ipc": ("wire.h", "layout.h", "head.h", "dtype.h"),
    "server": ("manifest.h", "protocol.h"),
}
# Headers with an interface in their numbers and enums alone: their structs stay inside of a program.
NUMBERS = {"server/sync": ("frame.h", "preamble.h", "patch.h", "stripes.h")}

CONVERSION = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t|L)?[a-zA-Z]")
OPTION = re.compile(r'\{\s*"([\w-]+)",\s*(no|required|optional)_argument,\s*NULL,\s*(\'.\'|\w+)\s*\}')
ARGUMENT = {"no": "", "required": "=ARG", "optional": "[=ARG]"}


def program_of(path):
    """The program with the longest folder that holds the path."""
    found = max(((len(folder), program) for program, folders in PROGRAMS.items() for folder in folders
                 if path.startswith(folder + "/")), default=None)
    return found and found[1]


def c_files(root, folder):
    return sorted(p for p in (root / folder).rglob("*") if p.suffix in C)


def programs(root):
    """The texts of each program's files."""
    texts = {program: [] for program in PROGRAMS}
    for top in ("ipc", "server", "bpf", "libclient"):
        for path in c_files(root, top):
            texts[program_of(str(path.relative_to(root)))].append(path.read_text())
    return texts


def without_comments(text):
    return sources.COMMENT_OR_STRING.sub(lambda m: " " if m.group()[0] == "/" else m.group(), text)


def literals(text):
    """Strings of the text as the compiler joins them, without those of includes and asserts."""
    text = re.sub(r"^[ \t]*#[ \t]*include.*$", "", without_comments(text), flags=re.M)
    text = re.sub(r"\b(?:_S|s)tatic_assert\([^;]*;", ";", text)
    found, end = [], None
    for m in sources.COMMENT_OR_STRING.finditer(text):
        if m.group()[0] == "'":
            end = None
            continue
        if end is not None and not text[end:m.start()].replace("\\\n", "").strip():
            found[-1] += m.group()[1:-1]
        else:
            found.append(m.group()[1:-1])
        end = m.end()
    return found


def is_word(literal):
    """True for JSON keys, types, codes, states, and names of fields, metrics, options, variables and files: no sentence."""
    return (not re.search(r'\s|\\n|\\"|^\{', literal) and re.search(r"[A-Za-z]{2}", CONVERSION.sub("", literal))
            and literal not in FRAGMENTS)


def words(texts):
    found = set()
    for literal in (literal for text in texts for literal in literals(text)):
        if is_word(literal):
            found.add(literal)
        found.update(re.findall(r'\\"([\w-]+)\\"\s*:', literal))  # keys of JSON that printf() writes
        found.update(re.findall(r"\bweightd_\w+", literal))  # metrics
    return found


def option_rows(code, macros):
    """Rows of getopt's tables, with macros expanded."""
    code = re.sub(r"^[ \t]*#.*(?:\\\n.*)*$", "", code, flags=re.M)
    rows = {f"--{name}{ARGUMENT[kind]}" + (f" -{short[1]}" if short[0] == "'" else "")
            for name, kind, short in OPTION.findall(code)}
    for name in set(re.findall(r"\bOPTIONS?_\w+", code)) & set(macros):
        rows |= option_rows(macros[name], macros)
    return rows


def commands(texts):
    """Verbs with their options, options of daemons, exit codes."""
    all_code = {program: [without_comments(text) for text in of] for program, of in texts.items()}
    macros = {name: body.replace("\\\n", " ") for code in all_code["weightctl"]
              for name, body in re.findall(r"^#define (OPTIONS?_\w+)((?:.*\\\n)*.*)$", code, re.M)}
    found = {program: set() for program in all_code}
    for program, of in all_code.items():
        for code in of:
            rows = sorted(option_rows(code, macros))
            verbs = sorted(re.findall(r'\bstruct verb \w+ = \{\s*\.name = "([^"]*)"', code))
            if verbs:
                found[program].add(f"{', '.join(verbs)}: {' '.join(rows)}")
            elif rows and program != "weightctl":
                found[program] |= set(rows)
            found[program] |= {f"exit {n}" for n in re.findall(r"\bEXIT_\w+(?: = | )(\d+)|\b_?exit\((\d+)\)", code)
                               for n in n if n}
    return found


def declarations(text, only_numbers=False, prototypes=False):
    """A header's code without comments, layout and strings, a line for each declaration."""
    code = without_comments(text).replace("\\\n", " ")
    code = re.sub(r'(\bstatic_assert\([^;]*?), "[^"]*"\)', r"\1)", code)
    lines = [re.sub(r"\s+", " ", line).strip() for line in re.findall(r"^[ \t]*#[ \t]*define.*$", code, re.M)]
    code = re.sub(r"^[ \t]*#.*$", "", code, flags=re.M)
    code = re.sub(r'\bextern "C" \{', "", code)
    code = re.sub(r"\s+", " ", code)
    code = re.sub(r"\s*([;{},])\s*", r"\1 ", code)
    found, depth, statement = [], 0, ""
    for char in code:
        statement += char
        depth += (char == "{") - (char == "}")
        if depth == 0 and char == ";" or depth == 0 and char == "}" and ")" in statement.split("{")[0]:
            found.append(re.sub(r"\s+", " ", statement).strip())
            statement = ""
    for line in found:
        is_enum, is_type = re.match(r"(?:typedef )?enum\b", line), re.match(r"(?:typedef |static const )?(?:struct|union)\b.*\{", line)
        is_prototype = not is_enum and not is_type and "(" in line and "assert" not in line.split("(")[0]
        if not prototypes and (is_prototype or is_type and "*" in line) or only_numbers and not is_enum:
            continue  # a struct with a pointer stays inside of a process
        lines.append(line)
    return {line for line in lines if line}


def headers(root, table, **options):
    found = {}
    for folder, names in table.items():
        for name in names:
            for path in sorted((root / folder).rglob(name)):
                if path.relative_to(root / folder).parts[0] != "sync":
                    found[f"{folder}: {name}"] = found.get(f"{folder}: {name}", set()) | declarations(path.read_text(), **options)
    return found


def library(root):
    header = root / "libclient/include/weightd.h"
    maps = sorted([*(root / "libclient").rglob("*.map"), *(root / "bpf").rglob("*.map")])
    return {"weightd.h": declarations(header.read_text(), prototypes=True),
            **{path.name: set(re.findall(r"[\w*]+(?=\s*[;{:])", without_comments(path.read_text()))) for path in maps}}


def settings(root):
    """Sections, keys and defaults, from the files that make install copies."""
    found = {}
    for path in sorted((root / "packaging").glob("*.conf")):
        rows = found[path.name] = set()
        section = ""
        for line in path.read_text().splitlines():
            if m := re.match(r"\[(.*)\]", line):
                section = m[1]
            elif m := re.match(r"#?([a-z-]+) *=(.*)", line):
                rows.add(f"[{section}] {m[1]} ={m[2].rstrip()}")
    return found


def records(texts):
    """The ids of messages with their names, and metrics with their units."""
    found = {}
    for program, of in texts.items():
        rows = found[program] = set()
        for code in map(without_comments, of):
            rows |= {f"message {name} {digits}" for name, digits in re.findall(r'"([\w-]+)",\s*"([0-9a-f]{32})"', code)}
            rows |= {f"metric {name} {unit}" for name, unit
                     in re.findall(r'\b[A-Z_]+\(\s*"(\w+)",\s*("\w+"|NULL),\s*"[^"]*', code)}
    return found


def signature(node):
    return f"{node.name}({ast.unparse(node.args)})"


def python_names(root):
    """Names in __all__ with their parameters, and the public members of classes, inherited ones included."""
    package = root / "libclient/python/weightd"
    found = {}
    for folder in sorted({p.parent for p in package.rglob("__init__.py")}):
        trees = {p.stem: ast.parse(p.read_text()) for p in sorted(folder.glob("*.py"))}
        init = ast.parse((folder / "__init__.py").read_text())
        home = {a.name: n.module for n in init.body if isinstance(n, ast.ImportFrom) and n.level == 1 for a in n.names}
        public = next(ast.literal_eval(n.value) for n in init.body
                      if isinstance(n, ast.Assign) and n.targets[0].id == "__all__")
        defined = [(module, n) for module, tree in trees.items() for n in tree.body
                   if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
        top = {n.name: n for module, n in defined if home.get(n.name, module) == module}
        rows = found[".".join(folder.relative_to(package.parent).parts)] = set(public)

        def add_members(name, of):
            for base in of.bases:
                if isinstance(base, ast.Name) and isinstance(top.get(base.id), ast.ClassDef):
                    add_members(name, top[base.id])
            for n in of.body:
                if isinstance(n, ast.FunctionDef) and (not n.name.startswith("_") or n.name.endswith("__")):
                    rows.add(f"{name}.{signature(n)}")
                elif isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_"):
                    rows.add(f"{name}.{n.target.id}")

        for name in public:
            if isinstance(top.get(name), ast.ClassDef):
                add_members(name, top[name])
            elif name in top:
                rows.add(signature(top[name]))
    return found


def gather(root):
    """{file: {section: set of lines}}."""
    texts = programs(root)
    return {
        "words": {program: words(of) for program, of in texts.items()},
        "commands": commands(texts),
        "records": records(texts),
        "settings": settings(root),
        "formats": {**headers(root, FORMATS), **headers(root, NUMBERS, only_numbers=True)},
        "library": library(root),
        "python": python_names(root),
    }


def render(sections):
    return "".join(f"\n== {section}\n" + "".join(f"{line}\n" for line in sorted(lines))
                   for section, lines in sections.items() if lines).lstrip()


def read(path):
    sections, lines = {}, set()
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("== "):
            lines = sections[line[3:]] = set()
        elif line:
            lines.add(line)
    return sections


def differences(root, kept=sources.ROOT):
    """Lines "file [section] + added" and "- removed". A word may move between a program and "shared"."""
    found = []
    for name, sections in gather(root).items():
        golden = read(kept / FOLDER / f"{name}.txt")
        for section in sorted({*golden, *sections}):
            before, now = golden.get(section, set()), sections.get(section, set())
            had, has = before, now
            if name in ("words", "records"):
                others = golden if section == "shared" else ("shared",)
                had = before.union(*(golden.get(other, set()) for other in others))
                others = sections if section == "shared" else ("shared",)
                has = now.union(*(sections.get(other, set()) for other in others))
            found += [f"{name} [{section}] - {line}" for line in sorted(before - has)]
            found += [f"{name} [{section}] + {line}" for line in sorted(now - had)]
    return found


def main(arguments):
    if arguments not in ([], ["--renew"]):
        return f"usage: {sys.argv[0]} [--renew]"
    changed = differences(sources.ROOT)
    print("\n".join(changed) if changed else "tests/lint/golden: no interface has changed")
    if arguments:
        for name, sections in gather(sources.ROOT).items():
            path = sources.ROOT / FOLDER / f"{name}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(sections))
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
