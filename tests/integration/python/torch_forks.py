"""
Programs in processes that are forked from one that has imported torch, which takes seconds: `torch_forks.py`.

Each line of input is a JSON {"code", "environment", "out", "err"}: a child runs the code with these variables, and writes to
these files. The answer is a line with its exit status.
"""
import contextlib
import json
import os
import sys
import traceback

import torch  # noqa: F401
import torch.optim  # noqa: F401

import weightd.torch  # noqa: F401


def play(command):
    """In the child. A traceback is all that an exception leaves, as in an interpreter."""
    os.environ.update(command["environment"])
    for name, number in ("out", 1), ("err", 2):
        fd = os.open(command[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    try:
        exec(compile(command["code"], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    for file in sys.stdout, sys.stderr:
        file.flush()
    os._exit(status)


def main():
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                play(json.loads(line))
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
