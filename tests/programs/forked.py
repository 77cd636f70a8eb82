"""
The programs of this folder by fork(), for tests, which have no time to import them once a process: forked.py NAME...

Each line of input is one of
    {"make": {KIND: FOLDER}}    a child makes these models of models.py, small ones; the report is its exit status
    {"program": NAME, "path": ..., "ranks": [0, 1], "grandchild": false, "environment": {}}
                                a child for each rank loads the path after the fork, so that the memory of the weights is
                                its own affair; the first one spawns another process if there shall be a grandchild. The
                                reports are those of program.py
    "end"                       ends the children
"""
import contextlib
import importlib
import json
import multiprocessing
import os
import sys

import models
from program import say, spawned, use


def main():
    programs = {name: importlib.import_module(name) for name in sys.argv[1:]}
    context, children = multiprocessing.get_context("fork"), []
    for line in sys.stdin:
        wanted = json.loads(line)
        if wanted == "end":
            end(children)
            children = []
            continue
        if "make" in wanted:
            maker = context.Process(target=models.make, args=("small", wanted["make"]))
            maker.start()
            maker.join()
            say(maker.exitcode)
            continue
        children = [fork(context, programs[wanted["program"]], wanted, i) for i in range(len(wanted["ranks"]))]
        say([receive(ours) for ours, _child in children])
    end(children)


def fork(context, program, wanted, i):
    ours, theirs = context.Pipe()
    environment = wanted["environment"] | {"PROGRAM_RANK": str(wanted["ranks"][i])}
    child = context.Process(target=begin, args=(ours, program, wanted["path"], environment, wanted["grandchild"] and i == 0, theirs))
    child.start()
    theirs.close()
    return ours, child


def end(children):
    """Closes all connections first: a child also has those of its elder siblings, and would keep them alive."""
    for ours, _child in children:
        ours.close()
    for _ours, child in children:
        child.join()


def begin(parents, program, path, environment, has_child, connection):
    parents.close()  # else the end of the parent's side would never be seen
    os.environ.update(environment)
    functions = program.load, program.output, program.parameters
    with contextlib.ExitStack() as stack:
        try:
            grandchild = stack.enter_context(spawned(*functions, path)) if has_child else []
            report, _model = use(*functions, path)
            connection.send([report, *grandchild])
        except Exception as e:
            connection.send([{"failed": f"{type(e).__name__}: {e}"}])
        with contextlib.suppress(EOFError):
            connection.recv()


def receive(connection):
    try:
        return connection.recv()
    except EOFError:
        return [{"failed": "the process ended before its report"}]


if __name__ == "__main__":
    main()
