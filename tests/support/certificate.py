"""Certificates of our own for programs on 127.0.0.1."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS: Final = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
HOST: Final = x509.SubjectAlternativeName([_ADDRESS])
NAMED_HOST: Final = x509.SubjectAlternativeName([x509.DNSName("localhost"), _ADDRESS])
# What a verifier may ask of an authority, and of what it has signed (RFC 5280, 4.2.1.3).
_SIGNS: Final = ("key_cert_sign", "crl_sign", "digital_signature")
_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority:
    """A private authority; all its files are in one folder, its certificate as `{name}.crt`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        usage = x509.KeyUsage(**{each: each in _SIGNS for each in _USAGES})
        certificate = (
            _begun(self._name, self._key)
            .issuer_name(self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(_identifier(self._key), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate, _ = _written(folder, name, certificate, self._key)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for the common name, on this machine, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _begun(_named(name), key)
            .issuer_name(self._name)
            .add_extension(NAMED_HOST, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                    _identifier(self._key)
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return _written(self._folder, name, certificate, key)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate, which is its own authority, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("stretto test")
    certificate = (
        _begun(name, key)
        .issuer_name(name)
        .add_extension(HOST, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _written(folder, "server", certificate, key)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _begun(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """Return a certificate of today that is not signed yet."""
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _written(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> tuple[Path, Path]:
    crt, pem = folder / f"{name}.crt", folder / f"{name}.key"
    crt.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem.touch(0o600)
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return crt, pem
