"""A model that weightd serves, as programs open it."""
from lib.features import BUILD, LIBRARY, ROOT
from process import Failed


def environment_of(daemon, name):
    """Variables for programs, beside those of this process."""
    return {"WEIGHTD_SOCKET": daemon.socket, "WEIGHTD_LIBRARY": str(LIBRARY), "PROGRAM_BUFFER": name,
            "PYTHONPATH": str(ROOT / "libclient/python")}


def exec_command(names, words):
    """The words that start a program on the versions. "{}" stands for their folder: of one, or of folders of each."""
    return [BUILD / "weightctl", "exec", *names, "--", *words]


class Version:
    """
    The newest version of buffer `name`, loaded from a folder, or from the GGUF file in it, into a weightd of the
    caller's. Failed.

    environment  of programs, beside that of this process
    """

    def __init__(self, daemon, name, folder):
        file = folder / "model.gguf"
        done = daemon.ctl("load", name, file if file.exists() else folder, check=False, timeout=600)
        if done.returncode:
            raise Failed(done.stderr.strip().splitlines()[-1])
        self.name, self.environment = name, environment_of(daemon, name)

    def command(self, words):
        return exec_command([self.name], words)
