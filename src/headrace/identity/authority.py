"""Manage an authority in a directory and the certificates that it issues: the work of `headrace tls`.

    DIRECTORY/authority.pem, authority.key   the authority; its key stays on this host
    DIRECTORY/NAME/certificate.pem, key.pem, authority.pem   the files for the host NAME

Keys are of type P-256. Certificates are short-lived, so a lost key soon becomes useless. Files are replaced
atomically, with mode 0600 in directories of mode 0700. An authority is never replaced.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.base.errors import PathExistsError, PathNotFoundError, StoreError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.base.private_folder import make_parents
from headrace.base.secret_file import read_secret
from headrace.base.sync_folder import sync_folder
from headrace.base.trusted_owner import check_above, check_directory
from headrace.identity.names import (
    DEFAULT_FORM,
    NODE,
    ROLES,
    SERVICE,
    Identity,
    NameForm,
    StrangerError,
    check_part,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    Kind = TypeVar("Kind", bound=x509.ExtensionType)

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 7
DAYS_MAX = 3650
COMMON_NAME_MAX = 64
EARLY = datetime.timedelta(minutes=5)
"""Time before its making from which on a certificate is valid, because clocks differ."""
HOST_CHARACTERS_MAX = 253
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
CERTIFICATE, KEY = "certificate.pem", "key.pem"


@dataclass(frozen=True, slots=True)
class Issued:
    """Describes a certificate. identity: None for an authority, and for a certificate with another form of name."""

    path: str
    identity: Identity | None
    subject: str
    names: tuple[str, ...]
    begins: datetime.datetime
    ends: datetime.datetime
    is_authority: bool


class Authority:
    """Issues the certificates of one cluster. directory: its path. Raise UsageError or PathNotFoundError when it
    has no readable authority."""

    def __init__(self, directory: str, *, form: str = DEFAULT_FORM) -> None:
        self._directory = directory
        self._form = NameForm(form)
        if os.path.isdir(directory):
            _check_directory(directory)
        self._certificate = _read_certificate(os.path.join(directory, AUTHORITY))
        self._key = _read_key(os.path.join(directory, AUTHORITY_KEY))
        if self._key.public_key() != self._certificate.public_key():
            raise UsageError(f"authority in {directory}", why="its key belongs to another certificate")
        self._cluster = _common_name(self._certificate)

    @property
    def cluster(self) -> str:
        return self._cluster

    @property
    def path(self) -> str:
        return os.path.join(self._directory, AUTHORITY)

    @classmethod
    def make(
        cls, directory: str, cluster: str, *, days: float = AUTHORITY_DAYS, form: str = DEFAULT_FORM
    ) -> Authority:
        """Create an authority. Raise PathExistsError when the directory has one, even a broken one."""
        with needs_extra("headrace tls"):
            from cryptography import x509
        check_part(cluster, "cluster")
        if len(cluster) > COMMON_NAME_MAX:
            raise UsageError(f"cluster {cluster!r}", why=f"it has more than {COMMON_NAME_MAX} characters")
        _check_days(days)
        NameForm(form)
        _make_directory(directory)
        key, name = _new_key(), _name(cluster)
        public = key.public_key()
        identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        builder = (
            _builder(name, public, days)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
            )
        )
        paths = os.path.join(directory, AUTHORITY_KEY), os.path.join(directory, AUTHORITY)
        for path in paths:
            if os.path.lexists(path):
                raise PathExistsError(f"authority {path}", why="it is never replaced")
        certificate = _pem(_signed(builder, key))
        _write_new(paths[0], _key_bytes(key))
        try:
            _write_new(paths[1], certificate)
        except BaseException:
            os.unlink(paths[0])  # a key alone would be in the way for ever
            raise
        return cls(directory, form=form)

    def issue(
        self,
        name: str,
        *,
        role: str = NODE,
        days: float = CERTIFICATE_DAYS,
        hosts: Sequence[str] = (),
        replace: bool = False,
    ) -> str:
        """Issue a certificate; return the directory with the certificate, its key and the authority. hosts: names
        and addresses of a server, for clients that compare them. replace: without it, raise PathExistsError when the
        certificate was issued before. A call that failed issued none."""
        (directory,) = self.issue_all([name], role=role, days=days, hosts=hosts, replace=replace)
        return directory

    def issue_all(
        self,
        names: Sequence[str],
        *,
        role: str = NODE,
        days: float = CERTIFICATE_DAYS,
        hosts: Sequence[str] = (),
        replace: bool = False,
    ) -> Iterator[str]:
        """Issue certificates as `issue` does, and yield each directory after it was written. All names are checked
        first, so only an error of the disk comes after the first directory."""
        if role not in ROLES:
            raise UsageError(f"role {role!r}", why="it is unknown", hint=f"use one of {', '.join(ROLES)}")
        _check_days(days)
        names = list(dict.fromkeys(names))
        uris = [self._form.uri_of(Identity(self._cluster, role, name)) for name in names]
        if not replace:
            self._check_not_issued(names)
        keys = [_new_key() for _ in names]
        certificates = [
            self._certified(key.public_key(), name, uri, role=role, days=days, hosts=hosts)
            for key, name, uri in zip(keys, names, uris, strict=True)
        ]
        for name, key, certificate in zip(names, keys, certificates, strict=True):
            directory = os.path.join(self._directory, name)
            _make_directory(directory)
            _write(os.path.join(directory, AUTHORITY), _pem(self._certificate))
            _write(os.path.join(directory, KEY), _key_bytes(key))
            _write(os.path.join(directory, CERTIFICATE), _pem(certificate))
            yield directory

    def _check_not_issued(self, names: Sequence[str]) -> None:
        issued = [name for name in names if os.path.lexists(os.path.join(self._directory, name, CERTIFICATE))]
        if issued:
            others = ", and no other one is issued now" if len(names) > len(issued) else ""
            raise PathExistsError(
                f"certificates of {', '.join(issued)} in {self._directory}",
                why=f"they were issued before{others}",
                hint=f"headrace tls renew {' '.join(issued)}",
            )

    def renew(self, name: str, *, days: float | None = None) -> str:
        """Issue a certificate again with a new key, for the same duration. days: another duration. Raise
        PathNotFoundError."""
        from cryptography import x509

        check_part(name, "name")
        old = _read_certificate(os.path.join(self._directory, name, CERTIFICATE))
        identity = self._identity_of(old)
        if identity is None or identity.name != name:
            raise UsageError(f"certificate of {name}", why="it names another identity, or none")
        alternatives = _alternatives(old)
        hosts = [
            *alternatives.get_values_for_type(x509.DNSName),
            *map(str, alternatives.get_values_for_type(x509.IPAddress)),
        ]
        duration = old.not_valid_after_utc - old.not_valid_before_utc - EARLY
        return self.issue(
            name,
            role=identity.role,
            days=duration / datetime.timedelta(days=1) if days is None else days,
            hosts=hosts,
            replace=True,
        )

    def names(self) -> list[str]:
        """Return the names of all certificates in this directory."""
        return [
            name
            for name in sorted(os.listdir(self._directory))
            if os.path.exists(os.path.join(self._directory, name, CERTIFICATE))
        ]

    # ------------------------------------------------------------ internal

    def _certified(
        self,
        public: ec.EllipticCurvePublicKey,
        name: str,
        uri: str,
        *,
        role: str,
        days: float,
        hosts: Sequence[str],
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in (NODE, SERVICE):
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        signer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(_name(name), public, days)
            .issuer_name(self._certificate.subject)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), *map(_alternative, hosts)]),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False
            )
        )
        return _signed(builder, self._key)

    def _identity_of(self, certificate: x509.Certificate) -> Identity | None:
        return identity_of(certificate, self._form)


def identity_of(certificate: x509.Certificate, form: NameForm) -> Identity | None:
    """Return the identity in a certificate, or None when its URIs have another form or name two."""
    from cryptography import x509

    with contextlib.suppress(StrangerError):
        return form.of_uris(_alternatives(certificate).get_values_for_type(x509.UniformResourceIdentifier))
    return None


def describe_certificate(path: str, *, form: str = DEFAULT_FORM) -> Issued:
    """Return the description of a PEM file. Raise PathNotFoundError or UsageError."""
    from cryptography import x509

    certificate = _read_certificate(path)
    alternatives = _alternatives(certificate)
    constraints = _extension(certificate, x509.BasicConstraints)
    return Issued(
        path,
        identity_of(certificate, NameForm(form)),
        _common_name(certificate),
        (
            *alternatives.get_values_for_type(x509.UniformResourceIdentifier),
            *alternatives.get_values_for_type(x509.DNSName),
            *map(str, alternatives.get_values_for_type(x509.IPAddress)),
        ),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        constraints is not None and constraints.ca,
    )


def certificates_below(directory: str) -> Iterator[str]:
    """Yield the certificates of an authority's directory, or of one host's. Raise PathNotFoundError when there is
    none."""
    paths = [os.path.join(directory, name) for name in (AUTHORITY, CERTIFICATE)]
    if os.path.isdir(directory):
        paths += [os.path.join(directory, name, CERTIFICATE) for name in sorted(os.listdir(directory))]
    present = [path for path in paths if os.path.exists(path)]
    if not present:
        raise PathNotFoundError(
            f"no certificates in {directory}", hint="headrace tls init, headrace tls issue"
        )
    yield from present


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_MAX])])


def _builder(subject: x509.Name, public: ec.EllipticCurvePublicKey, days: float) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host) or len(host) > HOST_CHARACTERS_MAX:
        raise UsageError(f"host {host!r}", why="it is neither a name nor an address")
    return x509.DNSName(host)


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    from cryptography import x509

    return _extension(certificate, x509.SubjectAlternativeName) or x509.SubjectAlternativeName([])


def _extension(certificate: x509.Certificate, kind: type[Kind]) -> Kind | None:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def _common_name(certificate: x509.Certificate) -> str:
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise PathNotFoundError(
            path, why="no such file", hint="headrace tls init makes an authority"
        ) from None
    except OSError as error:
        raise StoreError(path, why=error.strerror or str(error)) from error


def _read_certificate(path: str) -> x509.Certificate:
    with needs_extra("headrace tls"):
        from cryptography import x509
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise UsageError(f"certificate {path}", why="it is not a PEM file of a certificate") from error


def _read_key(path: str) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = read_secret(path, "key")
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"key {path}", why="it is not a PEM file of a key without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"key {path}", why="it is not of the type that `headrace tls init` makes")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _check_days(days: float) -> None:
    if not 0 < days <= DAYS_MAX:
        raise UsageError(f"--days {days:g}", why=f"it must be more than 0 and at most {DAYS_MAX}")


def _make_directory(directory: str) -> None:
    try:
        make_parents(directory)
        check_above(os.path.abspath(directory))
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
    except OSError as error:
        raise StoreError(f"directory {directory}", why=error.strerror or str(error)) from error
    _check_directory(directory)


def _check_directory(directory: str) -> None:
    """Refuse a directory in which another user may put or exchange a file. Raises UsageError or StoreError."""
    try:
        if os.stat(directory).st_mode & 0o022:
            raise UsageError(f"directory {directory}", why="other users may write there", hint="chmod 700")
        check_directory(os.path.abspath(directory))
    except OSError as error:
        raise StoreError(f"directory {directory}", why=error.strerror or str(error)) from error


def _write(path: str, data: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    new_path = f"{path}.{secrets.token_hex(4)}.new"
    try:
        _write_new(new_path, data)
        os.replace(new_path, path)
        sync_folder(os.path.dirname(path) or ".")
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(path, why=error.strerror or str(error)) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_path)


def _write_new(path: str, data: bytes) -> None:
    """Create a file that only its owner may read; leave none if that fails. Raises PathExistsError or StoreError."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise PathExistsError(path, why="it is never replaced") from None
    except OSError as error:
        raise StoreError(path, why=error.strerror or str(error)) from error
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except OSError as error:
        os.unlink(path)
        raise StoreError(path, why=error.strerror or str(error)) from error
