"""A certificate authority of the test's own and what it has signed: good, expired, for another
host; and one that nobody has signed.

make(directory) -> Certs, with the paths of PEM files; the servers' have certificate and key in one
file.
"""
import dataclasses
import os
import time

from agent import need, run

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclasses.dataclass
class Certs:
    ca: str
    good: str        # for localhost, 127.0.0.1, ::1 and every name in `names`
    expired: str     # the same, a day too old
    wrong_host: str  # in time, for a name that is not ours
    unsigned: str    # signed by itself


def _openssl(directory, *arguments):
    result = run("openssl", *arguments, cwd=directory)
    assert result.returncode == 0, f"openssl {' '.join(arguments)}: {result.stderr}"


def _leaf(directory, name, alternatives, begin, end):
    """`openssl ca` and not `openssl x509`, since only it accepts the start of a certificate."""
    with open(os.path.join(directory, "ca.cnf"), "w", encoding="ascii") as f:
        f.write("[ca]\ndefault_ca = here\n[here]\ndatabase = index\nnew_certs_dir = "
                ".\nrand_serial = yes\ndefault_md = sha256\npolicy = any\n"
                "unique_subject = no\nx509_extensions = leaf\n[any]\ncommonName = supplied\n"
                "[leaf]\nbasicConstraints = CA:FALSE\nextendedKeyUsage = "
                f"serverAuth\nsubjectAltName = {alternatives}\n")
    with open(os.path.join(directory, "index"), "w", encoding="ascii"):
        pass
    _openssl(directory, "req", *CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
             f"/CN={name}")
    stamp = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + offset))
             for offset in (begin, end)]
    _openssl(directory, "ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.pem",
             "-keyfile", "ca.key", "-in", f"{name}.csr",
             "-out", f"{name}.crt", "-startdate", stamp[0], "-enddate", stamp[1])
    return _with_key(directory, name)


def _with_key(directory, name):
    path = os.path.join(directory, f"{name}.pem")
    with open(path, "w", encoding="ascii") as out:
        for part in ("crt", "key"):
            with open(os.path.join(directory, f"{name}.{part}"), encoding="ascii") as f:
                out.write(f.read())
    return path


def make(directory, names=()):
    """@param names  further host names, `*.s3.test` for example"""
    need("openssl")
    os.makedirs(directory, exist_ok=True)
    _openssl(directory, "req", "-x509", *CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-days",
             "10", "-subj", "/CN=CA of a test", "-addext", "basicConstraints=critical,CA:TRUE",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    day = 86400
    ours = ",".join(["IP:127.0.0.1", "IP:::1", "DNS:localhost", *(f"DNS:{name}" for name in names)])
    good = _leaf(directory, "good", ours, -3600, 5 * day)
    expired = _leaf(directory, "expired", ours, -9 * day, -day)
    wrong_host = _leaf(directory, "wrong-host", "DNS:elsewhere.example", -3600, 5 * day)
    _openssl(directory, "req", "-x509", *CURVE, "-keyout", "unsigned.key", "-out", "unsigned.crt",
             "-days", "5", "-subj", "/CN=localhost", "-addext", f"subjectAltName={ours}")
    return Certs(ca=os.path.join(directory, "ca.pem"), good=good, expired=expired,
                 wrong_host=wrong_host, unsigned=_with_key(directory, "unsigned"))
