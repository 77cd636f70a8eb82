"""libsystemd as ipc/base/libsystemd.h declares it by hand is the one that systemd's headers declare."""
import re
import subprocess

from lib import features
from lint import sources

OURS = "ipc/base/libsystemd.h"
HEADERS = "systemd/sd-daemon.h", "systemd/sd-journal.h", "systemd/sd-login.h"


def test_libsystemd_is_declared_as_systemd_declares_it():
    includes = "".join(f"#define SD_JOURNAL_SUPPRESS_LOCATION\n#include <{header}>\n" for header in HEADERS)
    here = subprocess.run(["gcc", "-fsyntax-only", "-xc", "-"], input=includes, text=True, stderr=subprocess.DEVNULL)
    features.require("libsystemd-dev", "no headers of libsystemd (apt-get install libsystemd-dev)", here.returncode == 0)
    assert len(re.findall(r"^\tX\(", sources.text(OURS), re.M)) >= 4
    program = f"""{includes}
        #include "{OURS}"
        #define X(field, result, parameters) _Static_assert(__builtin_types_compatible_p( \\
            __typeof__(&sd_##field), __typeof__(((struct libsystemd *)0)->field)), "sd_" #field);
        LIBSYSTEMD_FUNCTIONS(X)
        """
    done = subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-I.", "-fsyntax-only", "-xc", "-"], cwd=features.ROOT,
                          input=program, text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
