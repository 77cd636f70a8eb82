"""Certificates as `weightctl pki` makes them, and such as it never would: by the openssl command line."""
import subprocess
import time

from lib import features
from lib.daemon import environment


def run(*command):
    done = subprocess.run(list(map(str, command)), env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}:\n{done.stdout}"


class Authority:
    """
    A CA in a folder that need not exist.

    certificate  path of its certificate
    crl          and of the list of what it revoked, once there is one
    """

    def __init__(self, folder):
        self.folder, self.certificate, self.crl = folder, folder / "ca.crt", folder / "ca.crl"
        run(features.BUILD / "weightctl", "pki", "ca", folder)

    def node(self, name):
        """Certificate and key of a node, as paths; always the same."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not certificate.exists():
            run(features.BUILD / "weightctl", "pki", "node", self.folder, name)
        return certificate, key

    def fresh(self, name, folder):
        """Another certificate and key of a node, in a folder of their own."""
        run(features.BUILD / "weightctl", "pki", "node", self.folder, name, "--out", self.folder / folder)
        return self.folder / folder / f"{name}.crt", self.folder / folder / f"{name}.key"

    def revoke(self, *name):
        """All certificates of a node that were issued until now; without one, none."""
        run(features.BUILD / "weightctl", "pki", "revoke", self.folder, *name)
        return self.crl

    def brief(self, name, seconds):
        """A certificate and key of a node that expires in so many seconds."""
        certificate, key, request, config = (self.folder / f"brief-{name}.{end}" for end in ("crt", "key", "csr", "conf"))
        (self.folder / "brief-index").write_text("")
        config.write_text("[ca]\ndefault_ca = x\n[x]\nnew_certs_dir = {0}\ndatabase = {0}/brief-index\nrand_serial = yes\n"
                          "default_md = default\npolicy = any\ncopy_extensions = copyall\nunique_subject = no\n"
                          "[any]\ncommonName = supplied\n".format(self.folder))
        run("openssl", "req", "-newkey", "ed25519", "-noenc", "-keyout", key, "-subj", f"/CN={name}", "-out", request,
            "-addext", f"subjectAltName=DNS:{name}.weightd")
        key.chmod(0o600)
        begin, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + s)) for s in (-60, seconds))
        run("openssl", "ca", "-batch", "-notext", "-config", config, "-cert", self.certificate, "-keyfile", self.folder / "ca.key",
            "-startdate", begin, "-enddate", end, "-in", request, "-out", certificate)
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
