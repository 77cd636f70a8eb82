"""Interpreters of Python that contenders run with, and jobs for them."""
import os
import subprocess

from lib import features

from contenders import Failed

BUILD = features.BUILD
TOKEN = BUILD / "bench/train/token"
DEEPSPEED = features.ROOT / "build/deepspeed"


def token(d, name, n):
    """A job of n ranks at daemon `d`."""
    done = subprocess.run([TOKEN, name, str(n)], env=d.env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def ours_env(d):
    """Environment of a program with weightd.train, without $WEIGHTD_JOB."""
    return d.env | {"PYTHONPATH": str(features.ROOT / "libclient/python"), "WEIGHTD_LIBRARY": str(features.BUILD / "libweightd.so"),
                    "WEIGHTD_TRAIN_LIBRARY": str(features.BUILD / "libweightd-train.so")}


def torch_path():
    return features.TORCH2 or str(features.ROOT / "build/torch2/bin/python")


def torch():
    if not os.path.exists(torch_path()):
        raise Failed("no Python with torch 2 (make torch2)")
    return torch_path()


def deepspeed():
    """The interpreter and its environment. Its extension is compiled already: a rank would wait minutes for it."""
    if not (DEEPSPEED / "made-by").exists():
        raise Failed("no DeepSpeed (make deepspeed)")
    return str(DEEPSPEED / "bin/python"), {
        "TORCH_EXTENSIONS_DIR": str(DEEPSPEED / "extensions"), "DS_ACCELERATOR": "cpu",
        "PATH": f"{DEEPSPEED / 'bin'}:{os.environ['PATH']}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid() % 30000 + 1024)}
