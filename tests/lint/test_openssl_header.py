"""libcrypto as libclient/libcrypto.h declares it by hand is the one that OpenSSL's headers declare."""
import re
import subprocess

from lib import features
from lint import sources

OURS = "libclient/libcrypto.h"


def test_libcrypto_is_declared_as_openssl_declares_it():
    here = subprocess.run(["gcc", "-fsyntax-only", "-xc", "-"], input="#include <openssl/evp.h>", text=True,
                          stderr=subprocess.DEVNULL)
    features.require("openssl", "no headers of OpenSSL (apt-get install libssl-dev)", here.returncode == 0)
    assert len(re.findall(r"^\tX\(", sources.text(OURS), re.M)) >= 6
    program = f"""
        #include <openssl/evp.h>
        #include "{OURS}"
        #define X(function, result, parameters) _Static_assert(__builtin_types_compatible_p( \\
            __typeof__(&function), __typeof__(((struct libcrypto *)0)->function)), #function);
        LIBCRYPTO_FUNCTIONS(X)
        """
    done = subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-I.", "-fsyntax-only", "-xc", "-"], cwd=features.ROOT,
                          input=program, text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
