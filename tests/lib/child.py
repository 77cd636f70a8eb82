"""Clients in processes of their own: to be killed, to run out of something, or to be another user."""
import ctypes
import multiprocessing
import os

from lib.wire import PATIENCE_S

PR_SET_DUMPABLE = 4

fork = multiprocessing.get_context("fork")


class Child:
    """
    A fork that runs body(pipe, *args), as another user if `uid` is given (needs root).

        with Child(body) as child:
            child.hear()

    It is killed at the end of the block.
    """

    def __init__(self, body, *args, uid=None, gid=None, groups=()):
        self.pipe, theirs = fork.Pipe()

        def run():
            self.pipe.close()
            if uid is not None:
                become(uid, uid if gid is None else gid, groups)
            body(theirs, *args)

        self.process = fork.Process(target=run)
        self.process.start()
        self.pid = self.process.pid
        theirs.close()

    def hear(self):
        """Its next message. EOFError if it ended without one."""
        assert self.pipe.poll(PATIENCE_S), "the child sent nothing"
        return self.pipe.recv()

    def say(self, something):
        self.pipe.send(something)

    def end(self):
        """Waits for its end and returns the exit status; -11 for a SIGSEGV."""
        self.process.join(PATIENCE_S)
        return self.process.exitcode

    def kill(self):
        self.process.kill()
        self.process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.pipe.close()


def become(uid, gid, groups):
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # As after an exec: otherwise /proc/self were root's, and would refuse for another reason.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def run_as(uid, act, *args, **kw):
    """Returns or raises the result of act(*args) by this user; gid= and groups= as above."""
    def body(pipe):
        try:
            pipe.send((act(*args), None))
        except Exception as e:
            pipe.send((None, e))

    with Child(body, uid=uid, **kw) as child:
        result, error = child.hear()
    if error:
        raise error
    return result


def daemon_prefix(uid, n_descriptors=1024):
    """
    The words before a command that starts a daemon as this user: from a copy, since the user may have no access
    to the build tree, and in a folder that the user owns.
    """
    script = 'folder=${WEIGHTD_SOCKET%/*} && cp "$1" "$folder" && shift && ' \
        f'chown -R {uid}:{uid} "$folder" && ' \
        f'exec prlimit --nofile={n_descriptors}:{n_descriptors} ' \
        f'setpriv --reuid={uid} --regid={uid} --clear-groups "$folder/weightd" "$@"'
    return "sh", "-c", script, "sh"
