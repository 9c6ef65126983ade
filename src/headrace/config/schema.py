"""Every setting, in one place: what it means, its default, what is allowed.

`Config` is the table that the configuration file, the environment (`config/load.py`), the flags and
docs/configuration.md (`config/describe.py`) are made from. Values only: nothing is read here.
"""

from __future__ import annotations

import math
import os
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.base.errors import UsageError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.base.write_modes import WriteModes
from headrace.identity.names import DEFAULT_FORM, NameForm

CAPACITY_BYTES_MIN = 64 * BLOCK_SIZE_BYTES
TIERS = ("memory", "nvme", "hdd")
POLICIES = ("s3fifo", "lru")
CLUSTER_SCHEMES = ("etcd", "https")
LOG_LEVELS = ("debug", "info", "warning", "error")
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), less the closing zero


class CacheVolume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder for cache files and how much of its disk they may take."""

    folder: str
    capacity_bytes: int
    tier: str = "nvme"


class MountConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An origin to attach. options: see docs/operating.md."""

    url: str
    options: dict[str, str] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one node."""

    cache: Annotated[
        list[CacheVolume],
        Meta(description="Folders for cache files, each DIR:SIZE[:TIER]. The index lives on the first one."),
    ]
    run_folder: Annotated[
        str, Meta(description="Where sockets, state files and logs of running processes lie.")
    ]
    user: Annotated[
        str,
        Meta(
            description="Whom node and gateways run as where root starts them, NAME or UID, and :GROUP. Then nothing "
            "is written: `write` stays off. `up --user`, too."
        ),
    ] = ""
    mounts: Annotated[
        dict[str, MountConfig], Meta(description="Origins to attach, by their path in the namespace.")
    ] = {}
    allowed_origins: Annotated[
        str,
        Meta(
            description="What records of the cluster and the REST API may attach beside configured mounts and what is "
            "below them: URLs, with commas between; SCHEME://* for all of a kind; endpoint=URL."
        ),
    ] = ""
    sync_interval_s: Annotated[
        float, Meta(description="How old a listing may be before the origin is asked again, in seconds.")
    ] = 60.0
    eviction_policy: Annotated[
        str, Meta(description="What is dropped when space is needed: s3fifo or lru.")
    ] = "s3fifo"
    watermark_high: Annotated[
        float, Meta(description="Share of the capacity at which files begin to be dropped.")
    ] = 0.95
    watermark_low: Annotated[
        float, Meta(description="Share of the capacity down to which they are dropped.")
    ] = 0.90
    fill_concurrency_max: Annotated[
        int,
        Meta(description="Range reads in flight to origins at most; fewer are used while more don't help."),
    ] = 128
    fill_bytes_max: Annotated[
        int, Meta(description="Bytes of range reads in flight at most: what fills take of the node's memory.")
    ] = 256 << 20
    fill_range_bytes: Annotated[int, Meta(description="Bytes asked of an origin in one range read.")] = (
        8 * BLOCK_SIZE_BYTES
    )
    small_file_bytes_max: Annotated[
        int, Meta(description="Files up to this size are fetched whole when opened; one block at most.")
    ] = BLOCK_SIZE_BYTES
    readahead_bytes: Annotated[int, Meta(description="How far ahead of a sequential reader to fetch.")] = (
        64 * BLOCK_SIZE_BYTES
    )
    whole_file_after_bytes: Annotated[
        int,
        Meta(description="A file that was read this far is read in earnest: the rest of it is fetched too."),
    ] = 32 * BLOCK_SIZE_BYTES
    origin_timeout_s: Annotated[
        float,
        Meta(description="How long a request to an origin may take, trying again included, in seconds."),
    ] = 60.0
    verify_origin: Annotated[
        bool,
        Meta(
            description="What an origin sent is compared with the checksum that it names (its ETag, where it is one), "
            "and read again where they differ."
        ),
    ] = True
    scrub_bytes_s: Annotated[
        int,
        Meta(
            description="How many bytes a second of the cache are read in the background and compared with their "
            "checksums; 0: none. docs/operating.md says how to choose it."
        ),
    ] = 16 << 20
    cluster: Annotated[
        str,
        Meta(
            description="The cluster's etcd, as etcd://HOST:PORT[,HOST:PORT…][/NAME], or https://… where it speaks "
            "TLS; nothing: this node is alone."
        ),
    ] = ""
    cluster_authority: Annotated[
        str, Meta(description="PEM file with the authority of etcd's certificate; nothing: tls_authority.")
    ] = ""
    cluster_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate that etcd is shown; its common name is the user there. Nothing: "
            "tls_certificate."
        ),
    ] = ""
    cluster_key: Annotated[str, Meta(description="PEM file with the key of cluster_certificate.")] = ""
    cluster_user: Annotated[
        str, Meta(description="User of etcd; nothing: none, or the one in the certificate.")
    ] = ""
    cluster_password: Annotated[str, Meta(description="File with the password of cluster_user.")] = ""
    cluster_insecure: Annotated[
        bool,
        Meta(
            description="An etcd beyond loopback is reached by etcd://, without TLS and without a user: who reaches "
            "it, or the way to it, stops the cluster, and without certificates of nodes steers it."
        ),
    ] = False
    node_id: Annotated[
        str,
        Meta(
            description="This node's name in the cluster; nothing: the name in its certificate, or the host's."
        ),
    ] = ""
    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT where peers reach this node; nothing: the address that leads to etcd, port 7412."
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(description="Where the node stands; replicas go to different zones as long as there are any."),
    ] = ""
    replicas: Annotated[
        int, Meta(description="On how many nodes the cluster keeps each file, for reads to survive a node.")
    ] = 1
    borrowed_share: Annotated[
        float,
        Meta(
            description="Share of the cache for files that other nodes own; they are the first to be dropped."
        ),
    ] = 0.5
    rebalance_bytes_s: Annotated[
        int,
        Meta(description="Bytes a second that a node hands over to new owners when nodes come and go."),
    ] = 256 << 20
    lease_s: Annotated[
        float,
        Meta(description="After how long without a sign of life a node is out of the cluster, in seconds."),
    ] = 10.0
    tls_certificate: Annotated[
        str, Meta(description="PEM file with this node's certificate for peers; nothing: no TLS.")
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file with the key of tls_certificate.")] = ""
    tls_authority: Annotated[
        str, Meta(description="PEM file with the authority whose certificates peers must have.")
    ] = ""
    tls_identity: Annotated[
        str,
        Meta(
            description="The URI in certificates that names who has one, with {role} and {name} in it, and {cluster} "
            "where it is told; spiffe://… too."
        ),
    ] = DEFAULT_FORM
    peers_insecure: Annotated[
        bool,
        Meta(
            description="Peers are served beyond loopback without TLS: who reaches it reads and changes the cache."
        ),
    ] = False
    rest_insecure: Annotated[
        bool,
        Meta(
            description="The REST API listens without TLS beyond loopback, or without a token or certificates."
        ),
    ] = False
    s3_insecure: Annotated[
        bool,
        Meta(
            description="The S3 gateway asks nobody for a key where s3_credentials names none, and listens beyond "
            "loopback without TLS."
        ),
    ] = False
    webhdfs_insecure: Annotated[
        bool,
        Meta(
            description="The WebHDFS gateway asks nobody for a token where webhdfs_token names none, and listens "
            "beyond loopback without TLS: `user.name` alone is believed."
        ),
    ] = False
    write: Annotated[
        str,
        Meta(
            description="What may be written: off, local (this node's disk only), back (persisted to the origin in the "
            "background), back:2 (the same, and another node has it before close returns) or through (the origin has "
            "it before); PATH=MODE for single paths, with commas between."
        ),
    ] = "off"
    durable_puts: Annotated[
        bool,
        Meta(
            description="What S3, WebHDFS, REST or the library wrote, renamed or removed is on the disk before it is "
            "answered, and a copy for another node before that hears of it."
        ),
    ] = True
    persist_delay_s: Annotated[
        float,
        Meta(
            description="How long a written file is left alone before it is persisted (mode back), in seconds."
        ),
    ] = 1.0
    take_over_s: Annotated[
        float,
        Meta(
            description="How long a node is out of the cluster before the holders of its copies (mode back:2) persist "
            "them in its place, in seconds."
        ),
    ] = 30.0
    s3_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace s3` listens, and where `headrace up` starts a gateway if it is set."
        ),
    ] = ""
    s3_credentials: Annotated[
        str,
        Meta(
            description="File of access keys whose signatures the S3 gateway takes, like ~/.aws/credentials; nothing: "
            "the gateway makes a key at its first start. Mode 0600; read again when it changes."
        ),
    ] = ""
    s3_domains: Annotated[
        str,
        Meta(description="Domains, with commas between, below which a host's first name is a bucket."),
    ] = "localhost"
    rest_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace rest` listens beside its unix socket; if it is set, "
            "`headrace up` starts it, too. `unix`: only the socket."
        ),
    ] = ""
    rest_token: Annotated[
        str,
        Meta(
            description="File with the token that the REST API asks for over TCP, and that programs and commands show "
            "to it. Two, on a line each, are valid at a time; the first one is shown. Mode 0600; read again when it "
            "changes."
        ),
    ] = ""
    open_to_others: Annotated[
        bool,
        Meta(
            description="Programs of other users of this host read what is cached by descriptors of the node's, as far "
            "as the modes of files and directories let them. `up --allow-other` sets it."
        ),
    ] = False
    nodes: Annotated[
        str,
        Meta(
            description="REST APIs of a cluster, http://HOST:PORT or https://, with commas between: for programs and "
            "commands on a host where no node runs."
        ),
    ] = ""
    webhdfs_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace webhdfs` listens, and where `headrace up` starts one if it is set."
        ),
    ] = ""
    webhdfs_token: Annotated[
        str,
        Meta(
            description="File with the token, or two of them on a line each, that the WebHDFS gateway asks for; "
            "nothing: it makes one at its first start. Mode 0600; read again when it changes."
        ),
    ] = ""
    webhdfs_tls_authority: Annotated[
        str,
        Meta(
            description="PEM file with the authority whose certificates clients of the WebHDFS gateway must have; then "
            "no token is needed, unless webhdfs_token names one."
        ),
    ] = ""
    webhdfs_tls_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the WebHDFS gateway's certificate and its chain: the gateway speaks TLS."
        ),
    ] = ""
    webhdfs_tls_key: Annotated[str, Meta(description="PEM file with the key of webhdfs_tls_certificate.")] = (
        ""
    )
    s3_metadata: Annotated[
        bool,
        Meta(
            description="The S3 gateway keeps and tells user metadata, content headers and tags where the origin has "
            "them, and asks the origin for those that did not come with the bytes."
        ),
    ] = True
    s3_tls_certificate: Annotated[
        str,
        Meta(description="PEM file with the S3 gateway's certificate and its chain: the gateway speaks TLS."),
    ] = ""
    s3_tls_key: Annotated[str, Meta(description="PEM file with the key of s3_tls_certificate.")] = ""
    log_level: Annotated[str, Meta(description="debug, info, warning or error.")] = "warning"

    def __post_init__(self) -> None:
        _check_volumes(self.cache)
        _one_of("eviction_policy", self.eviction_policy, POLICIES)
        _one_of("log_level", self.log_level, LOG_LEVELS)
        _check_numbers(self)
        if not 0 < self.watermark_low <= self.watermark_high <= 1:
            raise UsageError("settings watermark_low, watermark_high", why="must be 0 < low <= high <= 1")
        for name in (
            "fill_concurrency_max",
            "fill_bytes_max",
            "fill_range_bytes",
            "readahead_bytes",
            "origin_timeout_s",
            "replicas",
            "lease_s",
            "rebalance_bytes_s",
        ):
            if getattr(self, name) <= 0:
                raise UsageError(f"setting {name} = {getattr(self, name)}", why="must be more than 0")
        if not 0 <= self.small_file_bytes_max <= BLOCK_SIZE_BYTES:
            raise UsageError(
                f"setting small_file_bytes_max = {self.small_file_bytes_max}",
                why="must be 0 to 1 MiB (one block)",
            )
        _check_cluster(self)
        if WriteModes.parse(self.write).any and self.user:
            raise UsageError(
                f"setting user = {self.user}",
                why="owners and modes of what users write are kept by root's rights",
                hint="leave out user, or write",
            )
        if self.sync_interval_s < 0:
            raise UsageError(f"setting sync_interval_s = {self.sync_interval_s}", why="must not be negative")
        longest = broker_socket_of(self.socket_path) if self.open_to_others else self.socket_path
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
            raise UsageError(
                f"run folder {self.run_folder}",
                why="its path is too long for a unix socket",
                hint="set run_folder",
            )

    @property
    def upper_folder(self) -> str:
        """Where the upper layer lies."""
        return os.path.join(self.cache[0].folder, "upper")

    @property
    def copies_folder(self) -> str:
        """Where copies of what other nodes wrote lie."""
        return os.path.join(self.cache[0].folder, "copies")

    @property
    def socket_path(self) -> str:
        """One node a cache folder, so one socket a cache folder."""
        return socket_path_of(self.run_folder, self.cache[0].folder)


def socket_path_of(run_folder: str, cache_folder: str) -> str:
    """Where the node that owns this cache folder listens."""
    mark = zlib.crc32(os.fsencode(os.path.realpath(cache_folder)))
    return os.path.join(run_folder, f"{mark:08x}.sock")


def broker_socket_of(socket_path: str) -> str:
    """Where the node with that socket listens to programs of other users: they can't enter the run folder."""
    folder, name = os.path.split(socket_path)
    return os.path.join(public_folder_of(folder), name)


def public_folder_of(run_folder: str) -> str:
    """Beside the run folder, and open to all users of the host."""
    return run_folder + ".public"


def rest_socket_of(socket_path: str) -> str:
    """Where the REST API of the node with that socket listens. Not `.sock`: whatever is called so is a node."""
    return os.path.splitext(socket_path)[0] + ".rest"


def spill_of(socket_path: str) -> tuple[str, str]:
    """The folder, and the name in it, of what the node with that socket reads past its disks."""
    folder, name = os.path.split(os.path.splitext(socket_path)[0])
    return folder, name


def _check_volumes(volumes: list[CacheVolume]) -> None:
    if not volumes:
        raise UsageError("no cache folder", why="at least one is needed", hint="--cache DIR:SIZE")
    for volume in volumes:
        if volume.capacity_bytes < CAPACITY_BYTES_MIN:
            raise UsageError(
                f"cache {volume.folder} of {volume.capacity_bytes} bytes",
                why="too small",
                hint="64 MiB at least",
            )
        _one_of(f"tier of cache {volume.folder}", volume.tier, TIERS)
    folders = [os.path.realpath(volume.folder) for volume in volumes]
    if len(set(folders)) < len(folders):
        raise UsageError("cache folders", why="one is named twice")


def _check_cluster(config: Config) -> None:
    scheme = config.cluster.partition("://")[0]
    if config.cluster and scheme not in CLUSTER_SCHEMES:
        raise UsageError(
            f"setting cluster = {config.cluster!r}", why="unknown scheme", hint="etcd://HOST:PORT[/NAME]"
        )
    _check_etcd_access(config, tls=scheme == "https")
    if not 0 <= config.borrowed_share <= 1:
        raise UsageError(f"setting borrowed_share = {config.borrowed_share}", why="must be 0 to 1")
    tls = (config.tls_certificate, config.tls_key, config.tls_authority)
    if any(tls) and not all(tls):
        raise UsageError(
            "settings tls_certificate, tls_key, tls_authority", why="all three are needed, or none of them"
        )
    NameForm(config.tls_identity)
    for gateway in ("s3", "webhdfs"):
        names = f"{gateway}_tls_certificate", f"{gateway}_tls_key"
        if len({bool(getattr(config, name)) for name in names}) > 1:
            raise UsageError(f"settings {', '.join(names)}", why="both are needed, or none of them")
    if config.webhdfs_tls_authority and not config.webhdfs_tls_certificate:
        raise UsageError("setting webhdfs_tls_authority", why="it needs webhdfs_tls_certificate")


def _check_etcd_access(config: Config, *, tls: bool) -> None:
    shown = config.cluster_certificate, config.cluster_key
    if len({bool(name) for name in shown}) > 1:
        raise UsageError("settings cluster_certificate, cluster_key", why="both are needed, or none of them")
    if bool(config.cluster_user) != bool(config.cluster_password):
        raise UsageError("settings cluster_user, cluster_password", why="both are needed, or none of them")
    if tls:
        if not (config.cluster_authority or config.tls_authority):
            raise UsageError(
                f"setting cluster = {config.cluster!r}",
                why="nobody says whose certificate etcd has",
                hint="set cluster_authority",
            )
    elif any(shown) or config.cluster_authority or config.cluster_user:
        raise UsageError(
            f"setting cluster = {config.cluster!r}",
            why="certificates and passwords are for etcd by TLS, and would travel in the open",
            hint="write https://HOST:PORT[/NAME]",
        )


def _check_numbers(config: Config) -> None:
    """No setting is negative, infinite or no number: processes hand settings on as JSON, which knows few of these."""
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, (int, float)) and not 0 <= value < math.inf:
            raise UsageError(f"setting {name} = {value}", why="must be a number, 0 or more")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"setting {name} = {value!r}", why="unknown", hint=f"one of {', '.join(allowed)}")


SECRET_PARTS = (
    *(
        "secret",
        "token",
        "key",
        "password",
        "passwd",
        "pwd",
        "passphrase",
        "credential",
        "sas",
        "connection_string",
    ),
    *("auth", "header", "cookie", "kwargs"),
)
PUBLIC_OPTIONS = frozenset(
    (
        *(
            "endpoint",
            "region",
            "anonymous",
            "profile",
            "allow_http",
            "path_style",
            "account_name",
            "timeout_s",
        ),
        *("request_limit_per_s", "bytes_limit_per_s", "concurrency_max", "verify"),
        *("host", "port", "anon", "use_ssl", "project", "protocol"),  # of drivers of fsspec
    )
)
"""Options of an origin that are kept on disk and in the cluster's records. All others may be secret: each node takes
them from its own configuration or surroundings."""


def public_options(options: dict[str, str]) -> dict[str, str]:
    """Return those that may be kept and shown. A value with a password in it (user:password@host) is none of them."""
    return {name: value for name, value in options.items() if name in PUBLIC_OPTIONS and "@" not in value}


def is_secret(option: str) -> bool:
    """Whether an option of that name may hold what must not be shown or kept. Rather one too many: access_key_id
    is none, and is hidden."""
    return any(part in option.lower() for part in SECRET_PARTS)
