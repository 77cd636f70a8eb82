"""C programs for what Python is too slow or too polite to do."""
import functools
import os
import pathlib
import subprocess

from lib import features

HERE = pathlib.Path(__file__).parent
SANITIZED = {"build-address": ["-fsanitize=address,undefined"], "build-thread": ["-fsanitize=thread"]}


@functools.cache
def compiled(name, sources, *flags):
    """Compiles into the build tree, anew in each run of the tests, and returns the path."""
    result = features.BUILD / "integration" / name
    result.parent.mkdir(exist_ok=True)
    fresh = f"{result}.{os.getpid()}"
    subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra",
                    f"-I{features.ROOT}", f"-I{features.ROOT}/libclient/include", *sources, *flags,
                    "-o", fresh], check=True)
    os.replace(fresh, result)
    return result


def program(name):
    """programs/NAME.c, linked with libweightd, and with a sanitizer where the daemon has one."""
    return compiled(name, (HERE / f"{name}.c",), f"-L{features.BUILD}", f"-Wl,-rpath,{features.BUILD}",
                    "-lweightd", *SANITIZED.get(features.BUILD.name, []))
