"""C programs for what Python is too slow or too polite to do."""
import functools
import os
import pathlib
import shlex
import subprocess
import time

from lib import features

HERE = pathlib.Path(__file__).parent
SANITIZED = {"build-address": ["-fsanitize=address,undefined"], "build-thread": ["-fsanitize=thread"]}


@functools.cache
def headers_ns():
    """When the last of the headers was changed that such a program may have."""
    return max(path.stat().st_mtime_ns for folder in ("ipc", "libclient", "server", "tests/integration")
               for path in (features.ROOT / folder).rglob("*.h"))


def is_new(result, command, sources):
    """True if it was made from these sources by this command, as they are now."""
    try:
        return pathlib.Path(f"{result}.command").read_text() == command and \
            result.stat().st_mtime_ns > max(headers_ns(), *(path.stat().st_mtime_ns for path in sources))
    except FileNotFoundError:
        return False


@functools.cache
def compiled(name, sources, *flags):
    """Compiles into the build tree, unless another run of the tests has, and returns the path."""
    result = features.BUILD / "integration" / name
    command = ["cc", "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra",
               f"-I{features.ROOT}", f"-I{features.ROOT}/libclient/include", *map(str, sources), *flags, "-o"]
    if is_new(result, shlex.join(command), sources):
        return result
    result.parent.mkdir(exist_ok=True)
    fresh, began_ns = f"{result}.{os.getpid()}", time.time_ns()
    subprocess.run([*command, fresh], check=True)
    os.utime(fresh, ns=(began_ns, began_ns))  # a source may have been changed since
    os.replace(fresh, result)
    pathlib.Path(f"{fresh}.command").write_text(shlex.join(command))
    os.replace(f"{fresh}.command", f"{result}.command")
    return result


def program(name):
    """programs/NAME.c, linked with libweightd, and with a sanitizer where the daemon has one."""
    return compiled(name, (HERE / f"{name}.c",), f"-L{features.BUILD}", f"-Wl,-rpath,{features.BUILD}",
                    "-lweightd", *SANITIZED.get(features.BUILD.name, []))
