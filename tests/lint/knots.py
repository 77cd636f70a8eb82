#!/usr/bin/env python3
"""
Knots: files of a program that need each other in a circle.

A noun is x.c and x.h of a folder. It needs another noun if it uses a function or a variable that the other's .c
defines. A knot is a strongly connected component of that graph: none of its nouns can be read, tested or changed
without all the others. A large knot is one thing badly cut.

knots.py prints the knots of each program; knots.py PROGRAM... prints the names that tie its largest knot.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lint import sources  # noqa: E402


# A program: its folder, and the folders inside that are of another.
PROGRAMS = {
    "sync": ("server/sync", ("engine", "gloo", "local", "nccl", "tcp")),
    "tcp": ("server/sync/tcp", ()),
    "gloo": ("server/sync/gloo", ()),
    "nccl": ("server/sync/nccl", ()),
    "local": ("server/sync/local", ()),
    "bpf": ("bpf", ("nccl",)),
    "nccl-plugin": ("bpf/nccl", ()),
    "server": ("server", ("sync",)),
    "libclient": ("libclient", ("weightctl",)),
    "weightctl": ("libclient/weightctl", ()),
    "ipc": ("ipc", ()),
}

NO_KEYWORD = r"^(?!static\b|typedef\b|extern\b|#|\s|\})"
FUNCTION = re.compile(NO_KEYWORD + r"[A-Za-z_][\w \t*]*?\b(\w+)\s*\([^;{}]*\)\s*\{", re.M)
VARIABLE = re.compile(NO_KEYWORD + r"[\w *]+?\b(\w+)(?:\[[^\]]*\])*\s*=", re.M)
NAME = re.compile(r"(?<![.\w>])(?<!struct )(?<!enum )\w+")  # neither a member nor a tag


def knots_of(graph):
    """Strongly connected components of more than one node, the largest first: Tarjan's algorithm without recursion."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in graph:
        path = [] if root in index else [(root, None)]
        while path:
            node, ahead = path.pop()
            if ahead is None:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
                ahead = iter(sorted(graph[node]))
            for other in ahead:
                if other not in index:
                    path += [(node, ahead), (other, None)]
                    break
                if other in on_stack:
                    low[node] = min(low[node], low[other])
            else:
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
    return sorted((knot for knot in found if len(knot) > 1), key=len, reverse=True)


def files_of(program):
    folder, others = PROGRAMS[program]
    return [path for path in sources.files(folder, suffixes=(".c", ".h"))
            if not path.name.endswith(".bpf.c") and path.relative_to(folder).parts[0] not in others]


def graph_of(codes):
    """({noun: nouns it needs}, {(noun, noun): names it uses}) of {path: code}."""
    owner = {}
    for path, code in codes.items():
        if path.suffix == ".c":
            for m in (*FUNCTION.finditer(code), *VARIABLE.finditer(code)):
                owner.setdefault(m[1], path.with_suffix(""))
    graph, names = {path.with_suffix(""): set() for path in codes}, {}
    for path, code in codes.items():
        here = path.with_suffix("")
        for name in set(NAME.findall(code)):
            there = owner.get(name, here)
            if there != here:
                graph[here].add(there)
                names.setdefault((here, there), []).append(name)
    return graph, names


def program_graph(program):
    return graph_of({path: sources.code(path) for path in files_of(program)})


def sizes():
    """The largest knot of each program; 1 where there is none."""
    return {program: max(map(len, knots_of(program_graph(program)[0])), default=1) for program in PROGRAMS}


def main(programs):
    if unknown := set(programs) - set(PROGRAMS):
        return f"{sys.argv[0]}: {', '.join(unknown)}: there are {', '.join(PROGRAMS)}"
    for program in programs or PROGRAMS:
        folder = pathlib.Path(PROGRAMS[program][0])
        graph, names = program_graph(program)
        knots = knots_of(graph)
        print(f"{program}: {len(graph)} nouns, knots of {', '.join(str(len(k)) for k in knots) or 'none'}")
        for knot in knots:
            print("    " + " ".join(str(noun.relative_to(folder)) for noun in knot))
        for knot in knots[:1] if programs else ():
            for (here, there), used in sorted(names.items()):
                if here in knot and there in knot:
                    print(f"        {here.relative_to(folder)} -> {there.relative_to(folder)}: {' '.join(sorted(used))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
