"""Hardening of the installed programs and libraries, as their files show it."""
import os
import re
import subprocess

import pytest
from lib import features
from lib.features import BUILD, ROOT

FLAGS = "-fstack-protector-strong", "-ftrivial-auto-var-init=zero"
FORTIFY = "-D_FORTIFY_SOURCE=3"
LINK = "-Wl,-z,relro,-z,now,-z,noexecstack"


def output(*args):
    outer = "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SAN", "CFLAGS", "CPPFLAGS", "LDFLAGS"  # of a make that runs this
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(args, check=True, text=True, stdout=subprocess.PIPE, cwd=ROOT, env=env).stdout


def lacks(path, is_program):
    """Names of the protections that an ELF file is without."""
    elf = output("readelf", "-W", "-h", "-l", "-d", path)
    undefined = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", path).splitlines()}
    # Without -g a file names no flags: `make -n` shows them all the same.
    compiled = re.findall(r"GNU C\S* .*", output("readelf", "-p", ".debug_str", path))
    has = {
        "pie": bool(re.search(r"Type: +DYN", elf)) and (not is_program or bool(re.search(r"Flags:.* PIE", elf))),
        "relro": "GNU_RELRO" in elf,
        "now": bool(re.search(r"\(FLAGS_1\) +Flags:.*\bNOW\b", elf)),
        "noexecstack": bool(re.search(r"GNU_STACK .* RW +0x", elf)),
        "canary": "__stack_chk_fail" in undefined and all(FLAGS[0] in line for line in compiled),
        "fortify": any(name.endswith("_chk") for name in undefined),
        "init": all(FLAGS[1] in line for line in compiled),
    }
    return {name for name, is_there in has.items() if not is_there}


def plain_build():
    if BUILD != ROOT / "build":
        pytest.skip("a sanitized build is not hardened, and not installed")


def installed():
    """{path in the build tree: is it a program?} of what `make install` copies."""
    copies = re.findall(r"^install -m (?:755|644) (build/.*) /nonexistent\S*/(s?bin|lib)/(?!s)", output("make", "-n", "install",
                        "DESTDIR=/nonexistent", "pythondir=/p"), re.M)
    return {path: folder != "lib" for paths, folder in copies for path in paths.split()}


def test_each_installed_program_and_library_is_hardened():
    plain_build()
    files = installed()
    features.require("library", "the programs are not built (make)", (ROOT / "build/libnccl-profiler-weightd.so").exists())
    assert {path.rpartition("/")[2] for path, is_program in files.items() if is_program} >= {"weightd", "weightd-cuda", "weightctl"}
    assert {path.rpartition("/")[2].split(".")[0] for path, is_program in files.items() if not is_program} >= \
        {"libweightd", "libweightd-train", "libnccl-profiler-weightd"}
    # Programs in build/install/ have the same objects, and only `make install` builds them.
    built = {path if (ROOT / path).exists() else path.replace("install/", ""): is_program for path, is_program in files.items()}
    found = {path: lacks(path, is_program) for path, is_program in built.items()}
    assert found == dict.fromkeys(found, set())


PROGRAM = """
#include <stdio.h>

int main(int argc, char **argv)
{
	char text[64];

	snprintf(text, (size_t)argc * 8, "%s", argv[0]);
	return puts(text);
}
"""
GOOD = "-O2", "-g", *FLAGS, "-U_FORTIFY_SOURCE", FORTIFY, "-fPIC", "-pie", LINK


@pytest.mark.parametrize("missing, instead", [
    (set(), ()), ({"pie"}, ("-fno-pic", "-no-pie")), ({"relro"}, ("-Wl,-z,norelro",)), ({"now"}, ("-Wl,-z,lazy",)),
    ({"noexecstack"}, ("-Wl,-z,execstack",)), ({"canary"}, ("-fno-stack-protector",)),
    ({"fortify"}, ("-U_FORTIFY_SOURCE",)), ({"init"}, ("-ftrivial-auto-var-init=uninitialized",)),
])
def test_a_program_without_one_of_them_is_found(tmp_path, missing, instead):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    flags = [flag for flag in GOOD if missing != {"init"} or flag != FLAGS[1]]
    subprocess.run(["gcc", *flags, *instead, source, "-o", program], check=True)
    assert lacks(program, True) == missing


def commands(*args):
    """Lines of make that compile a file of ours, and those that link."""
    lines = [line for line in output("make", "-n", "-B", "V=1", *args).splitlines() if re.match(r"(gcc|g\+\+) ", line)]
    return [line for line in lines if " -c " in line], [line for line in lines if " -c " not in line]


def test_each_file_is_compiled_with_the_flags_and_each_program_linked_with_them():
    compiled, linked = commands("programs", "CC=gcc", "CXX=g++")
    assert compiled and linked
    assert [line for line in compiled if not {*FLAGS, FORTIFY} <= set(line.split())] == []
    assert [line for line in linked if LINK not in line.split() or ("-pie" in line.split()) == ("-shared" in line.split())] == []


def test_a_lower_level_of_fortify_in_a_distribution_s_flags_does_not_win():
    compiled, _ = commands("build/weightd", "CC=gcc", "CPPFLAGS=-D_FORTIFY_SOURCE=2")
    assert [line for line in compiled if re.findall(r"-[DU]_FORTIFY_SOURCE\S*", line)[-2:] != ["-U_FORTIFY_SOURCE", FORTIFY]] == []


@pytest.mark.parametrize("cflags", ["-g", "-O0 -g", "-O2 -O0"])
def test_a_build_without_optimization_has_no_fortify_which_would_only_warn(cflags):
    compiled, _ = commands("build/weightd", "CC=gcc", f"CFLAGS={cflags}")
    assert compiled and [line for line in compiled if FORTIFY in line or FLAGS[0] not in line] == []


@pytest.mark.parametrize("san", ["address", "thread"])
def test_sanitized_builds_have_none_of_them(san):
    compiled, linked = commands(f"build-{san}/weightd", "CC=gcc", f"SAN={san}")
    assert compiled and linked and [line for line in compiled + linked if set(line.split()) & {*FLAGS, FORTIFY, LINK}] == []
