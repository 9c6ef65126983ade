"""Records that nodes of one cluster sign: whoever keeps them (etcd) can lose them, and can't make or change one.

A sealed record is the JSON object that it was, with one more field at its end, which older readers pass by:

    {…,"seal":{"at_ns":…,"certificate":"…","signature":"…"}}

The signature, by the key of the node's or operator's certificate, is over the cluster's name, the record's key, the
time and the bytes before the seal: a record moved to another key or cluster is none. Of each key the newest that was
opened counts, in this run and, by `marks`, in the next: an older one that is put back is refused, and so is one that
was taken away.
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
"""More than etcd takes."""
CHAIN_MAX = 4
KNOWN_MAX = 4096
ENDED = b""
"""What a record is that was ended, by somebody who may."""
_MARK = b',"seal":'
_END = b'{"ended":true}'
_WRAP = b'{"record":'
_PURPOSE = "headrace record 1"


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """at_ns: when, by the clock of the one who sealed it. certificate: DER of his, and of those between it and the
    authority."""

    at_ns: int
    certificate: list[bytes]
    signature: bytes


class Mark(msgspec.Struct, frozen=True):
    """The newest that was opened of a record. signature: b"": it was taken away since. ends_s: until when any seal of
    it that was opened is good."""

    at_ns: int
    signature: bytes
    ends_s: float


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
        self._newest: dict[str, Mark] = {}
        self._latest_ns: dict[str, int] = {}

    def may_close(self, key: str) -> bool:
        """Whether this one may seal it."""
        kind = kind_of(key)
        return kind is not None and kind.is_sealed and _may_seal(kind, self._tls.own)

    def close(self, key: str, record: bytes) -> bytes:
        """The record with its seal. record: JSON; an object that is not empty, or what its kind has. ENDED: it is none
        any more."""
        kind = kind_of(key)
        if kind is None:
            raise ValueError(f"records of {key} are of no kind")
        if not kind.is_sealed:
            return record
        body = _END if record == ENDED else record if kind.is_object else _WRAP + record + b"}"
        private, chain = self._own.get()
        at_ns = max(time.time_ns(), self._latest_ns.get(key, 0) + 1)
        seal = _Seal(at_ns, chain, _sign(private, self._message(key, at_ns, body)))
        return body[:-1] + _MARK + msgspec.json.encode(seal) + b"}"

    def open(self, key: str, raw: bytes, *, newest: bool = True) -> bytes:
        """The record without its seal; ENDED. newest: none that is older will do from now on. StrangerError where it
        was not sealed by one who may, or is older."""
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
            raise StrangerError(f"it is sealed by {signer.identity}")
        if not _is_signed(signer.key, seal.signature, self._message(key, seal.at_ns, body)):
            raise StrangerError("its seal is broken")
        if kind.is_ordered:
            self._put_in_order(key, seal, signer.ends_s, newest=newest)
        return record

    def body(self, key: str, raw: bytes) -> bytes:
        """The record without its seal, whoever sealed it. StrangerError."""
        kind = kind_of(key)
        if kind is None:
            raise StrangerError("no record has such a key")
        return _unwrapped(_split(raw)[0], kind)

    def gone(self, key: str) -> None:
        """A record was taken away: the same one is not believed again. Only of what was opened as the newest."""
        mark = self._newest.get(key)
        if mark is not None:
            self._newest[key] = Mark(mark.at_ns, b"", mark.ends_s)

    def marks(self) -> dict[str, Mark]:
        """Of each record the newest that was opened, for the next run."""
        return dict(self._newest)

    def remember(self, marks: Mapping[str, Mark]) -> None:
        """As `marks` returned it in an earlier run; before anything is opened."""
        for key, mark in marks.items():
            kind = kind_of(key)
            if kind is not None and kind.is_ordered and mark.ends_s > time.time():
                self._newest[key] = mark
                self._latest_ns[key] = mark.at_ns

    def forget_old(self) -> None:
        """What no seal is good for any more need not be told from newer ones."""
        now_s = time.time()
        for key in [key for key, mark in self._newest.items() if mark.ends_s <= now_s]:
            del self._newest[key]

    def is_aging(self, raw: bytes) -> bool:
        """Whether half of the life of the certificate that sealed it is over, and the own one lives longer. Of a record
        that was opened."""
        seal = _split(raw)[1]
        signer = self._signer_of(seal)
        mine = self._signer_of(_Seal(0, self._own.get()[1], b""))
        return time.time() > (signer.begins_s + signer.ends_s) / 2 and mine.ends_s > signer.ends_s

    # ------------------------------------------------------------ inside

    def _put_in_order(self, key: str, seal: _Seal, ends_s: float, *, newest: bool) -> None:
        known = self._newest.get(key)
        if known is not None and (
            seal.at_ns < known.at_ns or (seal.at_ns == known.at_ns and seal.signature != known.signature)
        ):
            raise StrangerError("it is older than one that was there before")
        self._latest_ns[key] = max(seal.at_ns, self._latest_ns.get(key, 0))
        if newest:
            ends_s = max(ends_s, 0.0 if known is None else known.ends_s)
            self._newest[key] = Mark(seal.at_ns, seal.signature, ends_s)

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
                .time(datetime.datetime.fromtimestamp(time.time(), datetime.UTC))
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


def _may_seal(kind: RecordKind, who: Identity, *, ends: bool = False) -> bool:
    """ends: whatever was written by a node that is gone, and is persisted, another node ends."""
    if who.role == OPERATOR:
        return kind.by_operators
    if ends and not kind.is_lasting:
        return False
    return who.role == NODE and (ends or kind.owner in ("", who.name))


def _unwrapped(body: bytes, kind: RecordKind) -> bytes:
    if body == _END:
        return ENDED
    if kind.is_object:
        return body
    if not body.startswith(_WRAP):
        raise StrangerError("its seal is not understood")
    return body[len(_WRAP) : -1]


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
