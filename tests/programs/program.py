"""
The common part of all programs of this folder. None of it uses weightd.

    use_NAME.py PATH                     loads PATH, computes, prints a report, waits for the end of its input
    use_NAME.py PATH --grandchild        the same, and so does a process that it spawns
    use_NAME.py PATH --rounds 7 OTHER    loads PATH and OTHER in turns, and prints the seconds of each

A program has three functions: load(path) returns a model, output(model) the bytes that it computes, and
parameters(model) its tensors, or None where the program does not show them. One whose output takes long also has
first(model), which ends with the first output. The seed of what a program makes up by itself, like an adapter, is
$PROGRAM_RANK.
"""
import argparse
import contextlib
import gc
import hashlib
import json
import multiprocessing
import os
import sys
import time

MARK = "report: "  # libraries print, too


def rank():
    return int(os.environ.get("PROGRAM_RANK", 0))


def main(load, output, parameters, first=None):
    arguments = argparse.ArgumentParser()
    arguments.add_argument("path")
    arguments.add_argument("other", nargs="?")
    arguments.add_argument("--grandchild", action="store_true")
    arguments.add_argument("--rounds", type=int)
    given = arguments.parse_args()
    if given.rounds:
        say(time_in_turns(load, first or output, (given.path, given.other), given.rounds))
        return
    with contextlib.ExitStack() as stack:
        grandchild = stack.enter_context(spawned(load, output, parameters, given.path)) if given.grandchild else []
        report, _model = use(load, output, parameters, given.path)
        say([report, *grandchild])
        sys.stdin.read()


def use(load, output, parameters, path):
    """Returns a report, and the model, which must live while its memory is looked at."""
    model = load(path)
    data = output(model)
    tensors = parameters(model)
    places = None if tensors is None else sorted({(t.data_ptr(), t.numel() * t.element_size()) for t in tensors})
    return {"pid": os.getpid(), "path": path, "digest": hashlib.sha256(data).hexdigest(), "parameters": places}, model


def time_in_turns(load, first, paths, n_rounds):
    """The seconds from the call that loads to the first output; a first round of each warms up."""
    seconds = [[] for _ in paths]
    for turn in range(n_rounds + 1):
        for path, mine in zip(paths, seconds):
            begin = time.perf_counter()
            model = load(path)
            first(model)
            took = time.perf_counter() - begin
            if turn:
                mine.append(took)
            del model
            gc.collect()
    return seconds


@contextlib.contextmanager
def spawned(load, output, parameters, path):
    """The report of a process that a fresh interpreter runs, in a list; it lives until the block ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=answer, args=(load, output, parameters, path, theirs))
    child.start()
    theirs.close()
    try:
        yield [ours.recv()]
    finally:
        ours.close()
        child.join()


def answer(load, output, parameters, path, connection):
    report, _model = use(load, output, parameters, path)
    connection.send(report)
    with contextlib.suppress(EOFError):
        connection.recv()


def say(report):
    print(MARK + json.dumps(report), flush=True)
