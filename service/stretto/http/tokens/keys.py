"""Keys that verify tokens: read from the settings, or from what an issuer publishes (RFC 7517)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any, Final

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.utils import base64url_decode

from stretto.domain import TOKEN_SECRET_BYTES_MIN
from stretto.start_errors import ConfigurationError

# RFC 7518, 3.3.
RSA_BITS_MIN: Final = 2048

# The algorithm of each kind of published key, and which keys of that kind verify it. A shared
# secret ("oct") is never published.
_ALGORITHM_OF_KIND: Final = {
    "RSA": ("RS256", f"an RSA public key of {RSA_BITS_MIN} bits or more"),
    "EC": ("ES256", "a P-256 public key"),
    "OKP": ("EdDSA", "an Ed25519 public key"),
}
# Of a published id, so much is logged: the issuer chooses its length.
_KID_CHARACTERS_LOGGED: Final = 64


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key and the one algorithm that it verifies (RFC 8725, 3.1)."""

    algorithm: str
    material: Any
    """A secret's bytes or a public key; equal material verifies the same tokens."""
    kid: str | None = None

    def is_forged(self, token: str) -> bool:
        """Return whether a token lacks the signature of this secret.

        False for a public key: it takes twenty times as long to verify a signature.
        """
        if not isinstance(self.material, bytes):
            return False
        signed, _, signature = token.rpartition(".")
        try:
            given = base64url_decode(signature)
        except ValueError:
            return True
        return not hmac.compare_digest(given, hmac.digest(self.material, signed.encode(), "sha256"))


class UnusableError(Exception):
    """The issuer's answer is no usable key set."""


class _DroppedError(Exception):
    """A published key is not used; says why."""


def secret_key(secret: str) -> TokenKey:
    """Return the key of a shared secret; raise `ConfigurationError` if it is weak or no secret."""
    try:
        material = secret.encode()
        jwt.get_algorithm_by_name("HS256").prepare_key(material)
    except UnicodeEncodeError as error:
        raise ConfigurationError("jwt_secret must be UTF-8") from error
    except jwt.InvalidKeyError as error:
        # Anyone may know a public key: used as a secret, it would verify tokens of anyone's making.
        raise ConfigurationError("jwt_secret is a PEM or SSH key") from error
    if len(material) < TOKEN_SECRET_BYTES_MIN:
        raise ConfigurationError(f"jwt_secret needs at least {TOKEN_SECRET_BYTES_MIN} bytes")
    return TokenKey("HS256", material)


def public_key(pem: str) -> TokenKey:
    """Return the key of a PEM text; raise `ConfigurationError` if it is none that we can use."""
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
    try:
        material = jwt.PyJWK(present, algorithm).key
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
