"""
A program for Python with torch 2, which imports torch once and then forks a process for each rank: `torch_host.py`.

Reads lines of JSON and answers each with one:
	{"scene", "arguments", "environment", "result", "log"}	forks a rank that runs the scene: {"pid"}. "run" is run() of
								torch_scenes.py, "habits.compiled" is compiled() of torch_habits.py
	{"wait": pid}						waits for its end: {"status"}
"""
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pathlib
import signal
import sys
import traceback

import torch
import torch._dynamo  # noqa: F401, so that no rank imports it: it takes seconds

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "libclient/python"), str(HERE)]

import torch_scenes  # noqa: E402, found by the path above
import weightd.train  # noqa: E402, F401, so that ranks start fast

PR_SET_PDEATHSIG = 1


def scene(name):
    """The function of a scene."""
    room, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"torch_{room}") if room else torch_scenes, function)


def play(command):
    """In the child: the scene, and its result as JSON."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name, value in command["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    with open(command["log"], "a", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    result = {}
    try:
        result["value"] = scene(command["scene"])(**command["arguments"])
    except Exception as e:
        traceback.print_exc()
        result["error"], result["sentence"] = type(e).__name__, str(e)
    part = pathlib.Path(command["result"] + ".part")
    part.write_text(json.dumps(result))
    part.rename(command["result"])


def main():
    gc.collect()
    gc.freeze()  # collections in ranks, and at their end, then leave torch alone, which takes them a second
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            answer = {"status": os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1])}
        else:
            pid = os.fork()
            if not pid:
                with contextlib.suppress(BaseException):
                    play(command)
                os._exit(0)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
