"""Keys that verify tokens: read from the settings, or from what an issuer publishes (RFC 7517)."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from jwt.utils import base64url_decode

from stretto.domain import TOKEN_SECRET_BYTES_MIN
from stretto.start_errors import ConfigurationError

# RFC 7518, 3.3.
RSA_BITS_MIN: Final = 2048
# Keys of one setting: two during a rotation. A wrong token costs one verification for each.
KEYS_MAX: Final = 8
# Of HS256 in base64, without or with padding. To decode another one takes as long as it is.
_SIGNATURE_CHARACTERS: Final = (43, 44)
_BYTE_ORDER_MARK: Final = "\ufeff"
# A public key up to what follows it: the next key, a certificate.
_PUBLIC_KEY: Final = re.compile(
    r"-----BEGIN (?:RSA )?PUBLIC KEY-----.*?(?=-----BEGIN |\Z)", re.DOTALL
)

# The algorithm of each kind of published key, and which keys of that kind verify it. A shared
# secret ("oct") is never published.
_ALGORITHM_OF_KIND: Final = {
    "RSA": ("RS256", f"an RSA public key of {RSA_BITS_MIN} bits or more"),
    "EC": ("ES256", "a P-256 public key"),
    "OKP": ("EdDSA", "an Ed25519 public key"),
}
# What a public key of each kind consists of; more of what an issuer has published by mistake, or lies,
# is not even read. A private key is checked when it is made, for as long as its numbers are large: a
# 4096-bit one takes half a second, and one of 400,000 bits without its primes would never end.
_PUBLIC_MEMBERS: Final = {
    "RSA": ("kty", "n", "e"),
    "EC": ("kty", "crv", "x", "y"),
    "OKP": ("kty", "crv", "x"),
}
# The private part, of all kinds.
_PRIVATE_MEMBER: Final = "d"
# Of a published id, so much is logged: the issuer chooses its length.
_KID_CHARACTERS_LOGGED: Final = 64


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key and the one algorithm that it verifies (RFC 8725, 3.1)."""

    algorithm: str
    material: Any = field(compare=False)
    """A secret's bytes or a public key; equal material verifies the same tokens."""
    kid: str | None = None
    identity: bytes = field(init=False, repr=False)
    """Equal for equal material, and quickly compared: a set may have thousands of keys."""

    def __post_init__(self) -> None:
        material = self.material
        if not isinstance(material, bytes):
            material = material.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        object.__setattr__(self, "identity", material)

    def is_forged(self, token: str) -> bool:
        """Return whether a token lacks the signature of this secret.

        False for a public key: it takes twenty times as long to verify a signature.
        """
        if not isinstance(self.material, bytes):
            return False
        signed, _, signature = token.rpartition(".")
        if len(signature) not in _SIGNATURE_CHARACTERS:
            return True
        try:
            given = base64url_decode(signature)
        except ValueError:
            return True
        return not hmac.compare_digest(given, hmac.digest(self.material, signed.encode(), "sha256"))


class UnusableError(Exception):
    """The issuer's answer is no usable key set."""


class _DroppedError(Exception):
    """A published key is not used; says why."""


def secrets_in(text: str) -> tuple[str, ...]:
    """Return the shared secrets of a setting, of which each has a line, without blanks around it.

    Files that were put together may each begin with a byte order mark, as some editors write it.
    """
    lines = tuple(
        line.strip().removeprefix(_BYTE_ORDER_MARK).strip()
        for line in text.split("\n")
        if line.strip()
    )
    return lines or (text,)


def secret_keys(text: str) -> tuple[TokenKey, ...]:
    """Return the keys of shared secrets; raise `ConfigurationError` if one is weak or no secret."""
    try:
        materials = [secret.encode() for secret in secrets_in(text)]
        for each in (text.encode(), *materials):
            jwt.get_algorithm_by_name("HS256").prepare_key(each)
    except UnicodeEncodeError as error:
        raise ConfigurationError("jwt_secret must be UTF-8") from error
    except jwt.InvalidKeyError as error:
        # Anyone may know a public key: used as a secret, it would verify tokens of anyone's making.
        raise ConfigurationError("jwt_secret is a PEM or SSH key") from error
    if not text.strip():
        raise ConfigurationError("jwt_secret has nothing but blanks")
    if min(map(len, materials)) < TOKEN_SECRET_BYTES_MIN:
        message = f"jwt_secret needs at least {TOKEN_SECRET_BYTES_MIN} bytes"
        if len(materials) > 1:
            message += (
                " in each line, which is a secret of its own: write one without line ends, and have"
                " the token issuer sign with it"
            )
        raise ConfigurationError(message)
    if len(materials) > 1 and any(each.startswith(b"#") for each in materials):
        # It would be a secret that can be guessed.
        raise ConfigurationError("jwt_secret takes no comments: each line is a secret")
    if len(materials) > KEYS_MAX:
        raise ConfigurationError(f"jwt_secret has more than {KEYS_MAX} lines, each a secret")
    return tuple(TokenKey("HS256", material) for material in materials)


def public_keys(text: str) -> tuple[TokenKey, ...]:
    """Return the keys of PEM texts; raise `ConfigurationError` if we cannot use one of them."""
    # A text without any is read all the same, for its error.
    pems = _PUBLIC_KEY.findall(text) or [text]
    if len(pems) > KEYS_MAX:
        raise ConfigurationError(f"jwt_public_key has more than {KEYS_MAX} keys")
    if text.count("-----BEGIN ") > len(pems):
        # Tokens that the left-out key has signed would be refused, by a service that has started.
        raise ConfigurationError("jwt_public_key has more than public keys, such as a certificate")
    return tuple(map(_public_key, pems))


def _public_key(pem: str) -> TokenKey:
    try:
        material = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError("jwt_public_key cannot be read as PEM") from error
    algorithm = _algorithm_of(material)
    if algorithm is None:
        raise ConfigurationError(
            f"jwt_public_key must be RSA of {RSA_BITS_MIN} bits or more, P-256 or Ed25519"
        )
    return TokenKey(algorithm, material)


def read_keys(document: bytes) -> tuple[tuple[TokenKey, ...], tuple[str, ...]]:
    """Return the usable keys, in their order, and why each of the others is not used.

    Raises `UnusableError` if the document is no key set.
    """
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise UnusableError("the issuer's answer is not JSON") from error
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise UnusableError("the issuer's answer is no key set")
    keys, dropped = [], []
    for entry in entries:
        try:
            keys.append(_read_key(entry))
        except _DroppedError as error:
            kid = entry.get("kid") if isinstance(entry, dict) else None
            name = repr(kid[:_KID_CHARACTERS_LOGGED]) if isinstance(kid, str) else "without an id"
            dropped.append(f"key {name}: {error}")
    # Sorted: an issuer need not keep the order, and what is the same must not be logged again.
    return tuple(keys), tuple(sorted(dropped))


def _read_key(entry: object) -> TokenKey:
    """Return one key; raise if it is malformed, private, weak or not for signatures."""
    if not isinstance(entry, dict):
        raise _DroppedError("it is no object")
    # Some issuers write null for what they leave out.
    present = {name: value for name, value in entry.items() if value is not None}
    kind, kid = present.get("kty"), present.get("kid")
    if not isinstance(kid, str | None):
        raise _DroppedError("its id (kid) is not text")
    if not isinstance(kind, str) or kind not in _ALGORITHM_OF_KIND:
        raise _DroppedError(f"its kind (kty) is none of {', '.join(_ALGORITHM_OF_KIND)}")
    algorithm, wanted = _ALGORITHM_OF_KIND[kind]
    if present.get("use", "sig") != "sig":
        raise _DroppedError("it is not for signatures (use)")
    if _PRIVATE_MEMBER in present:
        raise _DroppedError("it is private: whoever has read it can sign with it")
    public = {name: present[name] for name in _PUBLIC_MEMBERS[kind] if name in present}
    try:
        material = jwt.PyJWK(public, algorithm).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError) as error:
        raise _DroppedError(f"it is not {wanted}") from error
    if _algorithm_of(material) != algorithm:
        raise _DroppedError(f"it is not {wanted}")
    if present.get("alg", algorithm) != algorithm:
        raise _DroppedError(f"its algorithm (alg) is not {algorithm}")
    return TokenKey(algorithm, material, kid)


def _algorithm_of(key: object) -> str | None:
    """Return the algorithm of a public key; None if its kind is unknown or it is too weak."""
    match key:
        case RSAPublicKey() if key.key_size >= RSA_BITS_MIN:
            return "RS256"
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return "ES256"
        case Ed25519PublicKey():
            return "EdDSA"
        case _:
            return None
