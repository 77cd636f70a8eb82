"""The kernel that is built in is the kernel that one reads."""
import hashlib
import os
import re
import shutil
import subprocess

import pytest
from features import ROOT, require

SOURCE = ROOT / "libclient/cuda/digest.cu"
PTX = ROOT / "libclient/cuda/digest.ptx"
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def first_comments():
    of, by = PTX.read_text().splitlines()[:2]
    return of.rsplit(" ", 1)[1], by.rsplit(" ", 1)[1]


def test_ptx_is_of_this_source():
    of, _ = first_comments()
    assert of == hashlib.sha256(SOURCE.read_bytes()).hexdigest(), "digest.cu was changed: make ptx"


def test_ptx_is_what_the_compiler_makes_of_it(tmp_path):
    require("nvcc", "no nvcc to make the PTX anew with", available=bool(NVCC))
    done = subprocess.run([NVCC, "--version"], check=True, text=True, stdout=subprocess.PIPE)
    here, (_, by) = re.search(r" V([\d.]+)", done.stdout).group(1), first_comments()
    require("nvcc", f"nvcc is {here}, the PTX was made by {by}", available=here == by)
    anew = tmp_path / "digest.ptx"
    subprocess.run(["make", "--no-print-directory", "ptx", f"PTX={anew}", f"B={tmp_path}", f"NVCC={NVCC}"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert anew.read_text() == PTX.read_text()


@pytest.mark.parametrize("gpu", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_ptx_assembles_for_gpus_of_all_ages_without_spilling(gpu, tmp_path):
    ptxas = NVCC and shutil.which("ptxas", path=os.path.dirname(NVCC))
    require("nvcc", "no ptxas to assemble the PTX with", available=bool(ptxas))
    done = subprocess.run([ptxas, "-v", f"-arch={gpu}", "-o", tmp_path / "digest.cubin", PTX],
                          text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr
