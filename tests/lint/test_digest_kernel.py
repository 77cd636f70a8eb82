"""The digest kernel that is built in is the one that one reads, as code for some GPUs and as PTX for the others."""
import hashlib
import os
import re
import shutil
import struct
import subprocess

import pytest
from lib.features import ROOT, require

SOURCE = ROOT / "libclient/cuda/digest.cu"
PTX = ROOT / "libclient/cuda/digest.ptx"
FATBIN = ROOT / "libclient/cuda/digest.fatbin"
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
GPUS = [80, 90, 100]
ELF = 2


def first_comments():
    of, by = PTX.read_text().splitlines()[:2]
    return of.rsplit(" ", 1)[1], by.rsplit(" ", 1)[1]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def images():
    """(kind, GPU, name of the source, bytes) of each in the fat binary."""
    data = FATBIN.read_bytes()
    magic, _, at, size = struct.unpack_from("<IHHQ", data)
    assert (magic, at + size) == (0xba55ed50, len(data))
    while at < len(data):
        kind, _, header_size, size, compressed, *_, gpu, ident, ident_size = struct.unpack_from("<HHIQ6I", data, at)
        assert not compressed, "a driver may lack its compression"
        code = at + header_size
        yield kind, gpu, data[at + ident:at + ident + ident_size].decode(), data[code:code + size]
        at = code + size


def test_ptx_is_of_this_source():
    of, _ = first_comments()
    assert of == sha256(SOURCE), "digest.cu was changed: make digest-kernel"


def test_fat_binary_is_of_this_ptx():
    assert [(kind, gpu, of) for kind, gpu, of, _ in images()] == [(ELF, gpu, f"sha256:{sha256(PTX)}") for gpu in GPUS], \
        "digest.ptx was changed: make digest-kernel"


def test_both_are_what_the_compiler_makes_of_the_source(tmp_path):
    require("nvcc", "no nvcc to make the kernel anew with", available=bool(NVCC))
    done = subprocess.run([NVCC, "--version"], check=True, text=True, stdout=subprocess.PIPE)
    here, (_, by) = re.search(r" V([\d.]+)", done.stdout).group(1), first_comments()
    require("nvcc", f"nvcc is {here}, the kernel was made by {by}", available=here == by)
    ptx, fatbin = tmp_path / "digest.ptx", tmp_path / "digest.fatbin"
    subprocess.run(["make", "--no-print-directory", "digest-kernel", f"PTX={ptx}", f"FATBIN={fatbin}", f"B={tmp_path}",
                    f"NVCC={NVCC}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert ptx.read_text() == PTX.read_text()
    assert fatbin.read_bytes() == FATBIN.read_bytes(), "the fat binary is another than that of this PTX"


@pytest.mark.parametrize("gpu", ["sm_75", *(f"sm_{gpu}" for gpu in GPUS)])
def test_ptx_assembles_for_gpus_of_all_ages_without_spilling(gpu, tmp_path):
    ptxas = NVCC and shutil.which("ptxas", path=os.path.dirname(NVCC))
    require("nvcc", "no ptxas to assemble the PTX with", available=bool(ptxas))
    done = subprocess.run([ptxas, "-v", f"-arch={gpu}", "-o", tmp_path / "digest.cubin", PTX],
                          text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in done.stderr
