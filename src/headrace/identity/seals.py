"""Records that nodes of one cluster sign: whoever keeps them (etcd) can lose them, and can't make or change one.

A sealed record is the JSON object that it was, with one more field at its end, which older readers pass by:

    {…,"seal":{"at_ns":…,"certificate":"…","signature":"…"}}

The signature, by the key of the node's certificate, is over the cluster's name, the record's key, the time and the
bytes before the seal: a record moved to another key or cluster is none. Of each key the newest that was seen counts: an
older one that is put back is refused.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import UsageError
from headrace.base.missing_extras import needs_extra
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import read_secret
from headrace.identity.mutual import MutualTls
from headrace.identity.names import NODE, Identity, StrangerError

if TYPE_CHECKING:
    from cryptography import x509

NODES = "nodes/"
"""Records of one node each: only that node seals them."""
SEALED = (NODES, "mounts/")
RECORD_BYTES_MAX = 64 << 10
CHAIN_MAX = 4
KNOWN_MAX = 4096
_MARK = b',"seal":'
_PURPOSE = "headrace record 1"


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """at_ns: when, by the clock of the one who sealed it. certificate: DER of his, and of those between it and the
    authority."""

    at_ns: int
    certificate: list[bytes]
    signature: bytes


@dataclass(frozen=True, slots=True)
class _Signer:
    """Whose key it is, and until when it is good."""

    identity: Identity
    begins_s: float
    ends_s: float
    key: Any


class Seals:
    """tls: the node's own certificate and key, which seal, and the authority, by which other seals are checked. On one
    thread. UsageError, MissingExtraError."""

    def __init__(self, tls: MutualTls) -> None:
        with needs_extra("setting tls_certificate"):
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        self._tls = tls
        self._load_key = load_pem_private_key
        files = tls.files
        self._own = Reloaded((files.certificate, files.key), self._read_own, name="sealing key")
        self._authorities = Reloaded((files.authority,), self._read_authorities, name="authority of seals")
        self._store_of: object = None
        self._signers: dict[bytes, _Signer] = {}
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._latest_ns: dict[str, int] = {}

    def covers(self, key: str) -> bool:
        return key.startswith(SEALED)

    def may_close(self, key: str) -> bool:
        """Whether this node is the one, or one of those, to seal it."""
        return not key.startswith(NODES) or key == NODES + self._tls.own.name

    def close(self, key: str, record: bytes) -> bytes:
        """The record with its seal. record: a JSON object that is not empty."""
        private, chain = self._own.get()
        at_ns = max(time.time_ns(), self._latest_ns.get(key, 0) + 1)
        seal = _Seal(at_ns, chain, _sign(private, self._message(key, at_ns, record)))
        return record[:-1] + _MARK + msgspec.json.encode(seal) + b"}"

    def open(self, key: str, raw: bytes, *, newest: bool = True) -> bytes:
        """The record without its seal. newest: none that is older will do from now on. StrangerError where it was not
        sealed by a node that may, or is older."""
        record, seal = _split(raw)
        signer = self._signer_of(seal)
        if signer.identity.cluster != self._tls.own.cluster or signer.identity.role != NODE:
            raise StrangerError(f"it is sealed by {signer.identity}")
        if key.startswith(NODES) and key != NODES + signer.identity.name:
            raise StrangerError(f"it is sealed by {signer.identity}")
        if not _is_signed(signer.key, seal.signature, self._message(key, seal.at_ns, record)):
            raise StrangerError("its seal is broken")
        known_ns, known = self._newest.get(key, (0, b""))
        if seal.at_ns < known_ns or (seal.at_ns == known_ns and seal.signature != known):
            raise StrangerError("it is older than one that was there before")
        self._latest_ns[key] = max(seal.at_ns, self._latest_ns.get(key, 0))
        if newest:
            self._newest[key] = seal.at_ns, seal.signature
        return record

    def is_aging(self, raw: bytes) -> bool:
        """Whether half of the life of the certificate that sealed it is over, and the own one lives longer. Of a record
        that was opened."""
        seal = _split(raw)[1]
        signer = self._signer_of(seal)
        mine = self._signer_of(_Seal(0, self._own.get()[1], b""))
        return time.time() > (signer.begins_s + signer.ends_s) / 2 and mine.ends_s > signer.ends_s

    # ------------------------------------------------------------ inside

    def _message(self, key: str, at_ns: int, record: bytes) -> bytes:
        return msgspec.json.encode((_PURPOSE, self._tls.own.cluster, key, at_ns, record))

    def _signer_of(self, seal: _Seal) -> _Signer:
        store = self._authorities.get()
        if store is not self._store_of:
            self._signers, self._store_of = {}, store
        mark = hashlib.sha256(b"".join(seal.certificate)).digest()
        signer = self._signers.get(mark)
        if signer is None:
            if len(self._signers) >= KNOWN_MAX:
                self._signers.clear()
            signer = self._signers[mark] = self._checked(store, seal.certificate)
        if not signer.begins_s <= time.time() < signer.ends_s:
            raise StrangerError(f"the certificate of {signer.identity}, which sealed it, has ended")
        return signer

    def _checked(self, store: Any, chain: list[bytes]) -> _Signer:
        from cryptography import x509
        from cryptography.x509 import verification

        try:
            leaf, *between = (x509.load_der_x509_certificate(one) for one in chain)
            verifier = (
                verification.PolicyBuilder()
                .store(store)
                .time(datetime.datetime.now(datetime.UTC))
                .max_chain_depth(CHAIN_MAX)
                .build_client_verifier()
            )
            verifier.verify(leaf, between)
        except Exception as error:  # whatever a certificate that somebody made up makes of it
            raise StrangerError(f"the certificate that sealed it is not taken: {_line(error)}") from error
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        identity = self._tls.form.of_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
        if not identity.cluster:
            identity = Identity(self._tls.own.cluster, identity.role, identity.name)
        ends = leaf.not_valid_after_utc.timestamp()
        return _Signer(identity, leaf.not_valid_before_utc.timestamp(), ends, leaf.public_key())

    def _read_own(self) -> tuple[Any, list[bytes]]:
        from cryptography.hazmat.primitives.serialization import Encoding

        files = self._tls.files
        text = read_secret(files.key, "setting tls_key")
        try:
            private = self._load_key(text.encode(), password=None)
            chain = _certificates(files.certificate)
            if private.public_key() != chain[0].public_key():
                raise ValueError("they don't belong together")
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"settings tls_certificate {files.certificate}, tls_key {files.key}", why=_line(error)
            ) from error
        return private, [one.public_bytes(Encoding.DER) for one in chain[:CHAIN_MAX]]

    def _read_authorities(self) -> Any:
        from cryptography.x509.verification import Store

        path = self._tls.files.authority
        try:
            return Store(_certificates(path))
        except ValueError as error:
            raise UsageError(f"setting tls_authority {path}", why=_line(error)) from error


def _split(raw: bytes) -> tuple[bytes, _Seal]:
    """StrangerError for a record without a seal, or with a wrong one."""
    record, mark, seal = raw.rpartition(_MARK)
    if not mark or len(raw) > RECORD_BYTES_MAX:
        raise StrangerError("it has no seal")
    try:
        decoded = decode_json(seal[:-1], _Seal)
    except msgspec.DecodeError as error:
        raise StrangerError(f"its seal is not understood: {error}") from error
    if not seal.endswith(b"}") or not 0 < len(decoded.certificate) <= CHAIN_MAX:
        raise StrangerError("its seal is not understood")
    return record + b"}", decoded


def _sign(private: Any, message: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    if isinstance(private, ec.EllipticCurvePrivateKey):
        return private.sign(message, ec.ECDSA(hashes.SHA256()))
    if isinstance(private, rsa.RSAPrivateKey):
        return private.sign(message, _pss(padding, hashes), hashes.SHA256())
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(message)
    raise UsageError("setting tls_key", why="a key of that kind can't sign records", hint="P-256 or RSA")


def _is_signed(public: Any, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, message, _pss(padding, hashes), hashes.SHA256())
        elif isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(signature, message)
        else:
            return False
    except InvalidSignature:
        return False
    return True


def _pss(padding: Any, hashes: Any) -> Any:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256().digest_size)


def _certificates(path: str) -> list[x509.Certificate]:
    from cryptography import x509

    return x509.load_pem_x509_certificates(_content(path))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"file {path}", why=error.strerror or str(error)) from error


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200]
