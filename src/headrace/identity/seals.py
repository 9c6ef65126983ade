"""Sign and verify the records that nodes of one cluster share: their store (etcd) can lose them, but can't make or
change one.

A sealed record is the JSON object with one more field at its end, which readers without seals ignore:

    {…,"seal":{"at_ns":…,"certificate":"…","signature":"…"}}

The key of the node's or operator's certificate signs the cluster's name, the record's key, the time and the bytes
before the seal. So a record that was moved to another key or cluster is invalid. Of each key, the newest record that
was opened is valid, in this run and, by `marks`, in the next. An older one that was restored in the store is refused,
and so is a deleted one.
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
from headrace.identity.names import NODE, OPERATOR, Identity, StrangerError
from headrace.identity.record_kinds import RecordKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography import x509

RECORD_BYTES_MAX = 2 << 20
"""Bytes of the largest record; etcd accepts less."""
CHAIN_MAX = 4
SIGNERS_MAX = 4096
ENDED = b""
"""The content of a record that was ended by a node that may end it."""
_MARK = b',"seal":'
_END = b'{"ended":true}'
_WRAP = b'{"record":'
_PURPOSE = "headrace record 1"


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the seal of a record. at_ns: the signer's time. certificate: DER of the signer's certificate, and of those
    between it and the authority."""

    at_ns: int
    certificate: list[bytes]
    signature: bytes


class Mark(msgspec.Struct, frozen=True):
    """Describes the newest version of a record that was opened. signature: b"" when the record was deleted since.
    ends_s: when the last seal that was opened expires."""

    at_ns: int
    signature: bytes
    ends_s: float


@dataclass(frozen=True, slots=True)
class _Signer:
    """Holds a signer's identity and key, and their validity."""

    identity: Identity
    begins_s: float
    ends_s: float
    key: Any


class Seals:
    """Seals and opens records, on one thread. Raise UsageError or MissingExtraError. tls: provides the node's own
    certificate and key, which seal, and the authority that verifies other seals."""

    def __init__(self, tls: MutualTls) -> None:
        with needs_extra("setting tls_certificate"):
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        self._tls = tls
        self._load_key = load_pem_private_key
        files = tls.files
        self._own = Reloaded((files.certificate, files.key), self._read_own, name="sealing key")
        self._authorities = Reloaded((files.authority,), self._read_authorities, name="authority of seals")
        self._signers_store: object = None
        self._signers: dict[bytes, _Signer] = {}
        self._newest: dict[str, Mark] = {}
        self._latest_ns: dict[str, int] = {}

    def may_close(self, key: str) -> bool:
        """Return whether this node may seal the record."""
        kind = kind_of(key)
        return kind is not None and kind.is_sealed and _may_seal(kind, self._tls.own)

    def close(self, key: str, record: bytes) -> bytes:
        """Return the record with its seal. record: a JSON object that is not empty, or what the record's kind has;
        ENDED ends the record."""
        kind = kind_of(key)
        if kind is None:
            raise ValueError(f"no kind of record has the key {key}")
        if not kind.is_sealed:
            return record
        body = _END if record == ENDED else record if kind.is_object else _WRAP + record + b"}"
        private, chain = self._own.get()
        at_ns = max(time.time_ns(), self._latest_ns.get(key, 0) + 1)
        seal = _Seal(at_ns, chain, _sign(private, self._message(key, at_ns, body)))
        return body[:-1] + _MARK + msgspec.json.encode(seal) + b"}"

    def open(self, key: str, raw: bytes, *, newest: bool = True) -> bytes:
        """Return the record without its seal; ENDED for one that was ended. newest: accept no older version from now
        on. Raise StrangerError when the signer may not seal the record, or when the record is older."""
        kind = kind_of(key)
        if kind is None:
            raise StrangerError("no record has such a key")
        if not kind.is_sealed:
            return raw
        body, seal = _split(raw)
        signer = self._signer_of(seal)
        record = _unwrapped(body, kind)
        if signer.identity.cluster != self._tls.own.cluster or not _may_seal(
            kind, signer.identity, ends=record == ENDED
        ):
            raise StrangerError(f"it was sealed by {signer.identity}, which may not seal it")
        if not _is_signed(signer.key, seal.signature, self._message(key, seal.at_ns, body)):
            raise StrangerError("its signature is wrong")
        if kind.is_ordered:
            self._put_in_order(key, seal, signer.ends_s, newest=newest)
        return record

    def body(self, key: str, raw: bytes) -> bytes:
        """Return the record without its seal, whoever sealed it. Raise StrangerError."""
        kind = kind_of(key)
        if kind is None:
            raise StrangerError("no record has such a key")
        return _unwrapped(_split(raw)[0], kind)

    def gone(self, key: str) -> None:
        """Record that a record was deleted: the same version is not accepted again. Only for a record opened as the
        newest."""
        mark = self._newest.get(key)
        if mark is not None:
            self._newest[key] = Mark(mark.at_ns, b"", mark.ends_s)

    def marks(self) -> dict[str, Mark]:
        """Return the newest opened version of each record, for the next run."""
        return dict(self._newest)

    def remember(self, marks: Mapping[str, Mark]) -> None:
        """Load the marks of an earlier run, before any record is opened."""
        for key, mark in marks.items():
            kind = kind_of(key)
            if kind is not None and kind.is_ordered and mark.ends_s > time.time():
                self._newest[key] = mark
                self._latest_ns[key] = mark.at_ns

    def forget_old(self) -> None:
        """Forget marks whose seals have all expired: those versions can't be opened any more."""
        now_s = time.time()
        for key in [key for key, mark in self._newest.items() if mark.ends_s <= now_s]:
            del self._newest[key]

    def is_aging(self, raw: bytes) -> bool:
        """Return whether half of the life of the signer's certificate is over, and the own certificate lives longer.
        The record must have been opened."""
        seal = _split(raw)[1]
        signer = self._signer_of(seal)
        own = self._signer_of(_Seal(0, self._own.get()[1], b""))
        return time.time() > (signer.begins_s + signer.ends_s) / 2 and own.ends_s > signer.ends_s

    # ------------------------------------------------------------ internal

    def _put_in_order(self, key: str, seal: _Seal, ends_s: float, *, newest: bool) -> None:
        newest_mark = self._newest.get(key)
        if newest_mark is not None and (
            seal.at_ns < newest_mark.at_ns
            or (seal.at_ns == newest_mark.at_ns and seal.signature != newest_mark.signature)
        ):
            raise StrangerError("it is older than a version that was accepted before")
        self._latest_ns[key] = max(seal.at_ns, self._latest_ns.get(key, 0))
        if newest:
            ends_s = max(ends_s, 0.0 if newest_mark is None else newest_mark.ends_s)
            self._newest[key] = Mark(seal.at_ns, seal.signature, ends_s)

    def _message(self, key: str, at_ns: int, record: bytes) -> bytes:
        return msgspec.json.encode((_PURPOSE, self._tls.own.cluster, _signable(key), at_ns, record))

    def _signer_of(self, seal: _Seal) -> _Signer:
        store = self._authorities.get()
        if store is not self._signers_store:
            self._signers, self._signers_store = {}, store
        digest = hashlib.sha256(b"".join(seal.certificate)).digest()
        signer = self._signers.get(digest)
        if signer is None:
            if len(self._signers) >= SIGNERS_MAX:
                self._signers.clear()
            signer = self._signers[digest] = self._verified(store, seal.certificate)
        if not signer.begins_s <= time.time() < signer.ends_s:
            raise StrangerError(f"the certificate of {signer.identity}, which sealed it, has expired")
        return signer

    def _verified(self, store: Any, chain: list[bytes]) -> _Signer:
        from cryptography import x509
        from cryptography.x509 import verification

        try:
            leaf, *intermediates = (x509.load_der_x509_certificate(der) for der in chain)
            verifier = (
                verification.PolicyBuilder()
                .store(store)
                .time(datetime.datetime.fromtimestamp(time.time(), datetime.UTC))
                .max_chain_depth(CHAIN_MAX)
                .build_client_verifier()
            )
            verifier.verify(leaf, intermediates)
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except Exception as error:  # an invented certificate can cause any error
            raise StrangerError(f"the certificate that sealed it is not trusted: {_line(error)}") from error
        identity = self._tls.form.of_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
        if not identity.cluster:
            identity = Identity(self._tls.own.cluster, identity.role, identity.name)
        ends_s = leaf.not_valid_after_utc.timestamp()
        return _Signer(identity, leaf.not_valid_before_utc.timestamp(), ends_s, leaf.public_key())

    def _read_own(self) -> tuple[Any, list[bytes]]:
        from cryptography.hazmat.primitives.serialization import Encoding

        files = self._tls.files
        text = read_secret(files.key, "setting tls_key")
        try:
            private = self._load_key(text.encode(), password=None)
            chain = _certificates(files.certificate)
            if private.public_key() != chain[0].public_key():
                raise ValueError("the key does not belong to the certificate")
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"settings tls_certificate {files.certificate}, tls_key {files.key}", why=_line(error)
            ) from error
        return private, [certificate.public_bytes(Encoding.DER) for certificate in chain[:CHAIN_MAX]]

    def _read_authorities(self) -> Any:
        from cryptography.x509.verification import Store

        path = self._tls.files.authority
        try:
            return Store(_certificates(path))
        except ValueError as error:
            raise UsageError(f"setting tls_authority {path}", why=_line(error)) from error


def _signable(key: str) -> str | bytes:
    """Return a key as JSON can have it: in bytes, thus in base64, where a path in it is not UTF-8. No key of a known
    kind is such a text."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogateescape")
    return key


def _may_seal(kind: RecordKind, signer: Identity, *, ends: bool = False) -> bool:
    """Return whether an identity may seal records of a kind. ends: any node may end the record of a node that is
    gone, once it has persisted that node's files."""
    if signer.role == OPERATOR:
        return kind.by_operators
    if ends and not kind.is_lasting:
        return False
    return signer.role == NODE and (ends or kind.owner in ("", signer.name))


def _unwrapped(body: bytes, kind: RecordKind) -> bytes:
    if body == _END:
        return ENDED
    if kind.is_object:
        return body
    if not body.startswith(_WRAP):
        raise StrangerError("its seal can't be decoded")
    return body[len(_WRAP) : -1]


def _split(raw: bytes) -> tuple[bytes, _Seal]:
    """Return a record and its seal. Raise StrangerError for a record without a seal, or with an invalid one."""
    record, mark, seal = raw.rpartition(_MARK)
    if not mark or len(raw) > RECORD_BYTES_MAX:
        raise StrangerError("it has no seal")
    try:
        decoded = decode_json(seal[:-1], _Seal)
    except msgspec.DecodeError as error:
        raise StrangerError(f"its seal can't be decoded: {error}") from error
    if not seal.endswith(b"}") or not 0 < len(decoded.certificate) <= CHAIN_MAX:
        raise StrangerError("its seal can't be decoded")
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
    raise UsageError("setting tls_key", why="a key of that type can't sign records", hint="use P-256 or RSA")


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
