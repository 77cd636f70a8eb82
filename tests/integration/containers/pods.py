"""
Containers of manifests of Kubernetes: their very commands, users, rights, volumes and limits, without a cluster.

    node = Node(Namespaces(rootfs), folder)
    pod = Pod(node, "base/daemonset.yaml")
    pod.run("own-directory")
    weightd = pod.start("weightd")
    assert weightd.probe("startupProbe")

A runtime makes containers: Namespaces of programs in a folder, Podman of an image.
"""
import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from lib import cgroup, features
from lib.daemon import environment

MANIFESTS = features.ROOT / "packaging/kubernetes"
PATIENCE_S = 60
CAPABILITIES = {"CHOWN": 0}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def documents(name):
    """The objects of a manifest."""
    import yaml
    return [d for d in yaml.safe_load_all((MANIFESTS / name).read_text()) if d]


def quantity(text):
    """Bytes of "20Gi"."""
    return int(text[:-2]) * UNITS[text[-2:]]


def memory_cgroup(pid):
    """The folder of the control group whose memory limit a process has."""
    lines = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return cgroup.V1 / path.lstrip("/")
    return next(cgroup.unified() / path.lstrip("/") for _, controllers, path in lines if not controllers)


def memory_usage(group):
    """Bytes that are charged, without page cache that can be dropped."""
    is_v1 = (group / "memory.usage_in_bytes").exists()
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    prefix = "total_" if is_v1 else ""
    cached = int(stat[f"{prefix}inactive_file"]) + int(stat[f"{prefix}active_file"])
    return int((group / ("memory.usage_in_bytes" if is_v1 else "memory.current")).read_text()) - cached


def shared_memory(group):
    """Bytes of memory files that are charged. Version 1 counts in batches: it may be late."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat.get("total_shmem", stat["shmem"]))


def n_oom_kills(group):
    file = group / ("memory.oom_control" if (group / "memory.oom_control").exists() else "memory.events")
    return int(re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)[1])


class Launch:
    """A container of a pod, from its manifest, but for folders and limits of the test."""

    def __init__(self, node, spec, container, memory):
        pod = spec.get("securityContext", {})
        own = container["securityContext"]
        self.name = container["name"]
        self.argv = container["command"] + container.get("args", [])
        self.uid = own.get("runAsUser", pod["runAsUser"])
        self.gid = own.get("runAsGroup", pod["runAsGroup"])
        self.groups = pod.get("supplementalGroups", [])
        self.is_read_only = own["readOnlyRootFilesystem"]
        self.capabilities = own["capabilities"].get("add", [])
        assert own["capabilities"]["drop"] == ["ALL"] and own["allowPrivilegeEscalation"] is False, own
        assert not (own.get("runAsNonRoot", pod.get("runAsNonRoot")) and self.uid == 0), "the kubelet refuses root"
        self.memory = memory or quantity(container["resources"]["limits"]["memory"])
        volumes = {v["name"]: v for v in spec["volumes"]}
        self.mounts, self.tmpfs = [], []
        for at in container["volumeMounts"]:
            volume = volumes[at["name"]]
            if "hostPath" in volume:
                folder = node.host_path(volume["hostPath"])
                self.mounts.append((str(folder), at["mountPath"], at.get("readOnly", False)))
            else:
                assert volume["emptyDir"]["medium"] == "Memory"
                self.tmpfs.append(at["mountPath"])


class Namespaces:
    """Containers of namespaces and a memory cgroup of their own, on a root file system of this machine's programs."""

    def __init__(self, root, users=None):
        self.root, self.users = root, users

    def start(self, launch):
        return NamespacesContainer(self, launch)


class NamespacesContainer:
    """
    pid  of its first process, as seen from here
    """

    def __init__(self, runtime, launch):
        self.launch = launch
        self.resources = contextlib.ExitStack()
        self.group = self.resources.enter_context(cgroup.MemoryCgroup(launch.memory))
        self.place = pathlib.Path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="weightd-container-")))
        self.log_file = self.resources.enter_context(tempfile.TemporaryFile("w+"))
        self.description = {
            "cgroup": str(self.group.path), "target": None, "users": runtime.users, "root": str(runtime.root), "place": str(self.place),
            "is_read_only": launch.is_read_only, "mounts": launch.mounts, "tmpfs": launch.tmpfs, "uid": launch.uid, "gid": launch.gid,
            "groups": launch.groups, "capabilities": [CAPABILITIES[name] for name in launch.capabilities], "argv": launch.argv, "env": {"PATH": PATH}}
        self.proc, self.pid = self._spawn({}, stdout=self.log_file, stderr=self.log_file)

    def _spawn(self, changes, **kw):
        out, into = os.pipe()
        command = [sys.executable, features.ROOT / "tests/integration/containers/pod_process.py", json.dumps(self.description | changes | {"report": into})]
        proc = subprocess.Popen(command, env=environment(), pass_fds=[into], stdin=subprocess.DEVNULL, text=True, **kw)
        os.close(into)
        with open(out) as pipe:
            said = pipe.readline()
        if not said:
            proc.wait(PATIENCE_S)
            raise AssertionError(f"{self.launch.name} did not start:\n{self.log}")
        return proc, int(said)

    def exec(self, *argv):
        proc, _ = self._spawn({"target": self.pid, "argv": argv}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = proc.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(argv, proc.returncode, out, err)

    @property
    def log(self):
        self.log_file.seek(0)
        return self.log_file.read()

    def wait(self, timeout=PATIENCE_S):
        return self.proc.wait(timeout)

    def close(self):
        if self.proc.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.proc.wait(PATIENCE_S)
        self.resources.close()


class Podman:
    """Containers of an image by podman, in a store of its own."""

    def __init__(self, image):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-podman-"))
        # crun refuses control groups of both versions, which this machine may have.
        runtime = ["--runtime", "runc"] if shutil.which("runc") else []
        self.command = ["podman", "--root", self.folder / "root", "--runroot", self.folder / "run", "--tmpdir", self.folder / "tmp",
                        "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none", *runtime]
        self.image = re.search(r"\S+weightd:\S+", self.run("load", "-i", image).stdout)[0]

    def run(self, *args, check=True):
        done = subprocess.run([*self.command, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S * 2)
        assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done

    def start(self, launch):
        return PodmanContainer(self, launch)

    def close(self):
        self.run("rm", "--all", "--force", "--time", 0)
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self.folder)


class PodmanContainer:
    serial = itertools.count()

    def __init__(self, podman, launch):
        self.podman, self.launch, self.name = podman, launch, f"{launch.name}-{next(self.serial)}"
        hard = 16384
        words = ["--detach", "--name", self.name, "--network", "none", "--entrypoint", json.dumps(launch.argv), "--user", f"{launch.uid}:{launch.gid}",
                 "--cap-drop", "all", "--security-opt", "no-new-privileges", "--memory", launch.memory, "--memory-swap", launch.memory,
                 "--ulimit", f"nofile={hard}:{hard}", "--ulimit", "nproc=4096:4096"]
        for group in launch.groups:
            words += ["--group-add", group]
        for name in launch.capabilities:
            words += ["--cap-add", name]
        if launch.is_read_only:
            words += ["--read-only", "--read-only-tmpfs=false"]
        for source, path, is_read_only in launch.mounts:
            words += ["--volume", f"{source}:{path}:{'ro' if is_read_only else 'rw'}"]
        for path in launch.tmpfs:
            words += ["--tmpfs", f"{path}:mode=1777"]
        podman.run("run", *words, podman.image)
        self.pid = int(self._inspect("{{.State.Pid}}"))

    def _inspect(self, what):
        return self.podman.run("inspect", "--format", what, self.name).stdout.strip()

    def exec(self, *argv):
        return self.podman.run("exec", self.name, *argv, check=False)

    @property
    def log(self):
        done = self.podman.run("logs", self.name)
        return done.stdout + done.stderr

    def wait(self, timeout=PATIENCE_S):
        return int(self.podman.run("wait", self.name).stdout)

    def close(self):
        self.podman.run("rm", "--force", "--time", 0, self.name)


class Container:
    """A container that runs, with the probes of its manifest."""

    def __init__(self, manifest, inner):
        self.manifest, self.inner = manifest, inner
        self.exec, self.wait, self.close = inner.exec, inner.wait, inner.close

    @property
    def pid(self):
        return self.inner.pid

    @property
    def log(self):
        return self.inner.log

    def check(self, *argv):
        done = self.exec(*argv)
        assert done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{self.log}"
        return done.stdout

    def probe(self, kind):
        """True if the command of that probe succeeds."""
        return self.exec(*self.manifest[kind]["exec"]["command"]).returncode == 0

    def await_probe(self, kind):
        deadline = time.monotonic() + PATIENCE_S
        while not self.probe(kind):
            assert time.monotonic() < deadline, f"{kind} of {self.manifest['name']} fails:\n{self.log}"
            time.sleep(0.02)  # as a kubelet repeats it

    def signal(self, signum):
        os.kill(self.pid, signum)

    def child(self):
        """PID of the process that its first one has started."""
        return int(pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    @property
    def memory(self):
        return memory_cgroup(self.pid)


class Node:
    """
    A machine for pods.

    folder  with what hostPath volumes have, at their paths
    """

    def __init__(self, runtime, folder):
        self.runtime, self.folder, self.started = runtime, folder, []

    def host_path(self, volume):
        path = self.folder / volume["path"].lstrip("/")
        if volume["type"] == "DirectoryOrCreate" and not path.exists():
            path.mkdir(parents=True, mode=0o755)
        assert path.is_dir(), f"hostPath {path}"
        return path

    def start(self, spec, container, memory=None):
        inner = self.runtime.start(Launch(self, spec, container, memory))
        self.started.append(Container(container, inner))
        return self.started[-1]

    def close(self):
        while self.started:
            self.started.pop().close()


class Pod:
    """The pod of a manifest, on a node."""

    def __init__(self, node, name):
        self.node = node
        self.spec = next(d["spec"]["template"]["spec"] for d in documents(name) if "template" in d.get("spec", {}))
        assert not any(key in self.spec for key in ("hostPID", "hostIPC", "hostNetwork"))

    def manifest(self, name):
        return next(c for c in self.spec.get("initContainers", []) + self.spec["containers"] if c["name"] == name)

    def start(self, name, memory=None, **changes):
        """changes: of the security context of the pod."""
        spec = self.spec | {"securityContext": self.spec["securityContext"] | changes}
        return self.node.start(spec, self.manifest(name), memory)

    def run(self, name):
        """An initContainer, which has to succeed. Returns what it printed."""
        container = self.start(name)
        status = container.wait()
        assert status == 0, f"{name} ended with {status}:\n{container.log}"
        return container.log
