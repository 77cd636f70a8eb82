"""Certificates as `weightctl pki` makes them, and such as it never would: by the openssl command line."""
import subprocess


def openssl(*args):
    done = subprocess.run(["openssl", *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"openssl {' '.join(map(str, args))}:\n{done.stdout}"


class Authority:
    """
    A CA in a folder that need not exist.

    certificate  path of its certificate
    """

    def __init__(self, folder):
        self.folder, self.certificate = folder, folder / "ca.crt"
        folder.mkdir(mode=0o700)
        openssl("genpkey", "-algorithm", "ed25519", "-out", folder / "ca.key")
        openssl("req", "-x509", "-new", "-key", folder / "ca.key", "-subj", "/CN=weightd CA of a test", "-days", 30,
                "-out", self.certificate)

    def node(self, name, names=None, days=30, stem=None):
        """Certificate and key of a node, as paths; `names` instead of its own; `days` below 0: it has expired."""
        stem = self.folder / (stem or name)
        certificate, key, request = (stem.with_name(f"{stem.name}.{end}") for end in ("crt", "key", "csr"))
        names = [f"{name}.weightd"] if names is None else names
        openssl("genpkey", "-algorithm", "ed25519", "-out", key)
        key.chmod(0o600)
        openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request,
                "-addext", "subjectAltName=" + ",".join(f"DNS:{n}" for n in names))
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.folder / "ca.key",
                "-days", days, "-copy_extensions", "copyall", "-out", certificate)
        return certificate, key
