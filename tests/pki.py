"""Certificates as `weightctl pki` makes them, and such as it never would: by the openssl command line."""
import subprocess

import features
from daemon import environment


def run(*command):
    done = subprocess.run(list(map(str, command)), env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}"


class Authority:
    """
    A CA in a folder that need not exist.

    certificate  path of its certificate
    """

    def __init__(self, folder):
        self.folder, self.certificate = folder, folder / "ca.crt"
        run(features.BUILD / "weightctl", "pki", "ca", folder)

    def node(self, name):
        """Certificate and key of a node, as paths; always the same."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not certificate.exists():
            run(features.BUILD / "weightctl", "pki", "node", self.folder, name)
        return certificate, key

    def odd(self, stem, names, days=30):
        """A certificate that has other DNS names than one, or that expired `days` days ago, which are negative."""
        certificate, key, request = (self.folder / f"{stem}.{end}" for end in ("crt", "key", "csr"))
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
        key.chmod(0o600)
        run("openssl", "req", "-new", "-key", key, "-subj", "/CN=odd", "-out", request,
            "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names))
        run("openssl", "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.folder / "ca.key",
            "-days", days, "-copy_extensions", "copyall", "-out", certificate)
        return certificate, key
