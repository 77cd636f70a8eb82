"""A header compiles alone, and the public ones in whatever language includes them."""
import concurrent.futures
import os
import shutil
import subprocess

import pytest
from lib import features
from lib.features import ROOT
from lint import sources

FLAGS = ["-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-I.", "-Ilibclient/include", "-Ilibclient/train/include"]
PUBLIC = "libclient/include/weightd.h", "libclient/train/include/weightd-train.h"


def compile_alone(compiler, header, *flags):
    return subprocess.run([compiler, *FLAGS, *flags, "-"], input=f'#include "{header}"\n', cwd=ROOT,
                          stderr=subprocess.PIPE, text=True).stderr


@pytest.mark.timeout(900)  # it runs the compiler 500 times, on a machine that may be busy
def test_each_header_compiles_alone():
    headers = sources.files("ipc", "server", "libclient", "tests", suffixes=(".h",))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = list(pool.map(lambda header: compile_alone("gcc", header, "-xc", "-std=gnu17", "-D_GNU_SOURCE"), headers))
    assert not any(wrong), "".join(wrong)


@pytest.mark.parametrize("header", PUBLIC)
@pytest.mark.parametrize("standard", ["c99", "c11", "c17", "c++11", "c++17"])
def test_public_header_compiles_as(standard, header):
    compiler = "g++" if "++" in standard else "gcc"
    features.require(compiler, f"no {compiler} (apt-get install {compiler})", shutil.which(compiler))
    language = "-xc++" if "++" in standard else "-xc"
    assert not compile_alone(compiler, header, language, f"-std={standard}", "-pedantic")
