"""Every setting in one table: its meaning, its default, its allowed values.

The configuration file, the environment (`config/load.py`), the flags and docs/configuration.md (`config/describe.py`)
are made from `Config`. The module has values only and reads nothing.
"""

from __future__ import annotations

import math
import os
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from headrace.base.errors import UsageError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.base.tiers import MEMORY, TIERS
from headrace.base.write_modes import WriteModes
from headrace.identity.names import DEFAULT_FORM, NameForm

CAPACITY_BYTES_MIN = 64 * BLOCK_SIZE_BYTES
POLICIES = ("s3fifo", "lru")
CLUSTER_SCHEMES = ("etcd", "https")
SEAL_POLICIES = ("off", "auto")
LOG_LEVELS = ("debug", "info", "warning", "error")
SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), less the closing zero


class CacheVolume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory for cache files and the space of its disk that they may take. writes_a_day: bytes that the cache
    writes there a day, at most about; 0: no limit."""

    folder: str
    capacity_bytes: int
    tier: str = "nvme"
    writes_a_day: int = 0


class MountConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An origin to attach. options: see docs/origins.md."""

    url: str
    options: dict[str, str] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one node."""

    cache: Annotated[
        list[CacheVolume],
        Meta(
            description="Directories for cache files, each DIR:SIZE[:TIER[:WRITES_A_DAY]]. The first one that is not "
            "in memory also has the index and written files. The directory above each must exist."
        ),
    ]
    run_folder: Annotated[
        str, Meta(description="Directory for sockets, state files and logs of running processes.")
    ]
    user: Annotated[
        str,
        Meta(
            description="User that node and gateways run as if root starts them: NAME or UID, optionally with :GROUP. "
            "All that is written belongs to that user then; `write` may not be back:N. `up --user` sets it."
        ),
    ] = ""
    mounts: Annotated[
        dict[str, MountConfig],
        Meta(description="Origins to attach, each by its path in the namespace."),
    ] = {}
    allowed_origins: Annotated[
        str,
        Meta(
            description="Origins that the cluster's records and the REST API may attach in addition to configured "
            "mounts and paths below them. URLs separated by commas; SCHEME://* allows all of a scheme; endpoint=URL "
            "allows an endpoint."
        ),
    ] = ""
    sync_interval_s: Annotated[
        float, Meta(description="Age in seconds at which a listing is fetched from the origin again.")
    ] = 60.0
    eviction_policy: Annotated[
        str, Meta(description="Policy that chooses the files to evict: s3fifo or lru.")
    ] = "s3fifo"
    watermark_high: Annotated[
        float, Meta(description="Share of a volume's capacity at which eviction starts.")
    ] = 0.95
    watermark_low: Annotated[
        float, Meta(description="Share of a volume's capacity at which eviction stops.")
    ] = 0.90
    fill_concurrency_max: Annotated[
        int,
        Meta(
            description="Limit for concurrent range reads from origins; the node uses fewer if more don't help."
        ),
    ] = 128
    fill_bytes_max: Annotated[
        int,
        Meta(
            description="Limit for the bytes of concurrent range reads: the memory of the node that fills use."
        ),
    ] = 256 << 20
    fill_range_bytes: Annotated[int, Meta(description="Size of one range read from an origin.")] = (
        8 * BLOCK_SIZE_BYTES
    )
    small_file_bytes_max: Annotated[
        int, Meta(description="Files up to this size are fetched completely when opened; at most one block.")
    ] = BLOCK_SIZE_BYTES
    readahead_bytes: Annotated[
        int, Meta(description="How far the node fetches ahead of a sequential reader.")
    ] = 64 * BLOCK_SIZE_BYTES
    whole_file_after_bytes: Annotated[
        int,
        Meta(
            description="After this many bytes of sequential reads, or of one read, the node fetches the whole file."
        ),
    ] = 32 * BLOCK_SIZE_BYTES
    predict_reads: Annotated[
        bool,
        Meta(
            description="Fetch ahead what a job without a plan is expected to read next, as far as space and bandwidth "
            "are free. docs/plan.md explains it."
        ),
    ] = True
    origin_timeout_s: Annotated[
        float,
        Meta(description="Limit in seconds for a request to an origin, including its retries."),
    ] = 60.0
    verify_origin: Annotated[
        bool,
        Meta(
            description="Verify bytes from an origin with the checksum that it sends (its ETag, if that is one), and "
            "read them again if they differ."
        ),
    ] = True
    tier_move_bytes_s: Annotated[
        int,
        Meta(
            description="Most bytes a second that are copied between the tiers of the cache. 0: files stay where they "
            "were placed."
        ),
    ] = 256 << 20
    scrub_bytes_s: Annotated[
        int,
        Meta(
            description="Rate of the scrub in bytes per second: the node reads the cache in the background and "
            "verifies checksums. 0 turns it off. docs/monitoring.md explains how to choose it."
        ),
    ] = 16 << 20
    seal: Annotated[
        str,
        Meta(
            description="`auto`: seal data sets of small files in place when they are cached as a whole and no longer "
            "change. `off`: seal only by command. A rule of the policy decides first. docs/seals/automatic.md explains "
            "it."
        ),
    ] = "off"
    seal_quiet_s: Annotated[
        float,
        Meta(
            description="For data sets that the node seals by itself: seconds for which one has not changed before it "
            "is sealed, and between two comparisons of a sealed one with its origin."
        ),
    ] = 300.0
    cluster: Annotated[
        str,
        Meta(
            description="The cluster's etcd, as `etcd://HOST:PORT[,HOST:PORT…][/NAME]`, or https://… if it uses TLS. "
            "If empty, this node has no cluster."
        ),
    ] = ""
    cluster_authority: Annotated[
        str, Meta(description="PEM file with the authority of etcd's certificate. If empty: tls_authority.")
    ] = ""
    cluster_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate that the node presents to etcd; its common name is the etcd "
            "user. If empty: tls_certificate."
        ),
    ] = ""
    cluster_key: Annotated[str, Meta(description="PEM file with the key of cluster_certificate.")] = ""
    cluster_user: Annotated[
        str, Meta(description="User of etcd. If empty: none, or the common name in the certificate.")
    ] = ""
    cluster_password: Annotated[str, Meta(description="File with the password of cluster_user.")] = ""
    cluster_insecure: Annotated[
        bool,
        Meta(
            description="Allow etcd:// beyond loopback, without TLS and without a user. Anyone who reaches etcd, or "
            "the network to it, can stop the cluster, and can control it if nodes have no certificates."
        ),
    ] = False
    node_id: Annotated[
        str,
        Meta(
            description="Name of this node in the cluster. If empty: the name in its certificate, or the host's name."
        ),
    ] = ""
    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT where this node serves peers. If empty: the host's address on the route to etcd, "
            "port 7412."
        ),
    ] = ""
    zone: Annotated[
        str,
        Meta(description="Failure domain of this node; replicas are placed in different zones if possible."),
    ] = ""
    replicas: Annotated[
        int,
        Meta(description="Number of nodes that cache each file, so that reads survive the loss of a node."),
    ] = 1
    borrowed_share: Annotated[
        float,
        Meta(description="Share of the cache for files that other nodes own; they are evicted first."),
    ] = 0.5
    rebalance_bytes_s: Annotated[
        int,
        Meta(description="Bytes per second that a node hands over to new owners when nodes join or leave."),
    ] = 256 << 20
    lease_s: Annotated[
        float,
        Meta(description="Seconds without a heartbeat after which a node leaves the cluster."),
    ] = 10.0
    tls_certificate: Annotated[
        str, Meta(description="PEM file with this node's certificate for peers. If empty, peers use no TLS.")
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file with the key of tls_certificate.")] = ""
    tls_authority: Annotated[
        str, Meta(description="PEM file with the authority whose certificates peers must have.")
    ] = ""
    tls_identity: Annotated[
        str,
        Meta(
            description="Form of the URI that identifies the owner of a certificate. It contains {role} and {name}, "
            "and optionally {cluster}; spiffe://… is allowed."
        ),
    ] = DEFAULT_FORM
    peers_insecure: Annotated[
        bool,
        Meta(
            description="Allow peers beyond loopback without TLS. Anyone who reaches the port can read and change the "
            "cache."
        ),
    ] = False
    rest_insecure: Annotated[
        bool,
        Meta(
            description="Allow the REST API beyond loopback without TLS, or without a token or client certificates."
        ),
    ] = False
    s3_insecure: Annotated[
        bool,
        Meta(
            description="Allow the S3 gateway to serve without access keys if s3_credentials is empty, and to listen "
            "beyond loopback without TLS."
        ),
    ] = False
    webhdfs_insecure: Annotated[
        bool,
        Meta(
            description="Allow the WebHDFS gateway to serve without a token if webhdfs_token is empty, and to listen "
            "beyond loopback without TLS. It then trusts `user.name`."
        ),
    ] = False
    write: Annotated[
        str,
        Meta(
            description="Write mode: off, local (files stay on this node's disk), back (the node persists files in the "
            "background), back:2 (the same, and another node has a replica before close returns) or through (the "
            "origin has the file before close returns). PATH=MODE sets single paths, separated by commas. "
            "PATH=local,exclusive or PATH=back,exclusive makes a directory that the kernel serves from this node's "
            "disk."
        ),
    ] = "off"
    durable_puts: Annotated[
        bool,
        Meta(
            description="Flush writes, renames and removals by S3, WebHDFS, REST and the library to disk before they "
            "are acknowledged, and replicas before their node acknowledges them."
        ),
    ] = True
    persist_delay_s: Annotated[
        float,
        Meta(description="Seconds without a change after which a written file is persisted (mode back)."),
    ] = 1.0
    take_over_s: Annotated[
        float,
        Meta(
            description="Seconds that a node must be out of the cluster before its replicas (mode back:2) persist its "
            "files in its place."
        ),
    ] = 30.0
    s3_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace s3` listens. If it is set, `headrace up` starts the gateway."
        ),
    ] = ""
    s3_credentials: Annotated[
        str,
        Meta(
            description="File of access keys that the S3 gateway accepts, like ~/.aws/credentials, of mode 0600. If "
            "empty, the gateway creates a key at its first start. The file is read again when it changes."
        ),
    ] = ""
    s3_domains: Annotated[
        str,
        Meta(description="Domains, separated by commas, whose subdomains are bucket names."),
    ] = "localhost"
    rest_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace rest` listens in addition to its unix socket; `unix`: only the "
            "socket. If it is set, `headrace up` starts the gateway."
        ),
    ] = ""
    rest_token: Annotated[
        str,
        Meta(
            description="File of mode 0600 with the token that the REST API requires over TCP, and that clients send. "
            "Two tokens, on a line each, can be valid at a time; clients send the first. The file is read again when "
            "it changes."
        ),
    ] = ""
    events_token: Annotated[
        str,
        Meta(
            description="File of mode 0600 with the token that origins send with their events to the REST API, or two "
            "tokens on a line each. It permits nothing else. The file is read again when it changes."
        ),
    ] = ""
    open_to_others: Annotated[
        bool,
        Meta(
            description="Let programs of other users of this host read cached files by descriptors from the node, as "
            "far as the modes of files and directories permit. `up --allow-other` sets it."
        ),
    ] = False
    nodes: Annotated[
        str,
        Meta(
            description="REST APIs of a cluster, http://HOST:PORT or https://…, separated by commas, for clients on a "
            "host without a node."
        ),
    ] = ""
    webhdfs_address: Annotated[
        str,
        Meta(
            description="HOST:PORT where `headrace webhdfs` listens. If it is set, `headrace up` starts the gateway."
        ),
    ] = ""
    webhdfs_token: Annotated[
        str,
        Meta(
            description="File of mode 0600 with the token that the WebHDFS gateway requires, or two tokens on a line "
            "each. If empty, the gateway creates one at its first start. The file is read again when it changes."
        ),
    ] = ""
    webhdfs_tls_authority: Annotated[
        str,
        Meta(
            description="PEM file with the authority whose certificates clients of the WebHDFS gateway must have. They "
            "need no token then, unless webhdfs_token is set."
        ),
    ] = ""
    webhdfs_tls_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the WebHDFS gateway's certificate and its chain. If set, the gateway uses TLS."
        ),
    ] = ""
    webhdfs_tls_key: Annotated[str, Meta(description="PEM file with the key of webhdfs_tls_certificate.")] = (
        ""
    )
    s3_metadata: Annotated[
        bool,
        Meta(
            description="Store and return user metadata, content headers and tags in the S3 gateway if the origin has "
            "them. The gateway requests those from the origin that did not come with the bytes."
        ),
    ] = True
    s3_tls_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the S3 gateway's certificate and its chain. If set, the gateway uses TLS."
        ),
    ] = ""
    s3_tls_key: Annotated[str, Meta(description="PEM file with the key of s3_tls_certificate.")] = ""
    log_level: Annotated[
        str, Meta(description="Lowest level that is logged: debug, info, warning or error.")
    ] = "warning"

    def __post_init__(self) -> None:
        _check_volumes(self.cache)
        force_setattr(self, "cache", _disk_first(self.cache))
        if self.cache[0].tier == MEMORY and WriteModes.parse(self.write).any:
            raise UsageError(
                f"cache {self.cache[0].folder}",
                why="written files need a directory on a disk: memory loses them at a restart",
                hint="name one, too",
            )
        _one_of("eviction_policy", self.eviction_policy, POLICIES)
        _one_of("log_level", self.log_level, LOG_LEVELS)
        _one_of("seal", self.seal, SEAL_POLICIES)
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
            "seal_quiet_s",
        ):
            if getattr(self, name) <= 0:
                raise UsageError(f"setting {name} = {getattr(self, name)}", why="must be more than 0")
        if not 0 <= self.small_file_bytes_max <= BLOCK_SIZE_BYTES:
            raise UsageError(
                f"setting small_file_bytes_max = {self.small_file_bytes_max}",
                why="must be 0 to 1 MiB (one block)",
            )
        _check_cluster(self)
        _check_write(self)
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
        """Return the directory of the upper layer."""
        return os.path.join(self.cache[0].folder, "upper")

    @property
    def copies_folder(self) -> str:
        """Return the directory of replicas of other nodes' files."""
        return os.path.join(self.cache[0].folder, "copies")

    @property
    def socket_path(self) -> str:
        """Return the node's socket: a cache directory has one node, and so one socket."""
        return socket_path_of(self.run_folder, self.cache[0].folder)


def socket_path_of(run_folder: str, cache_folder: str) -> str:
    """Return the socket of the node that owns this cache directory."""
    mark = zlib.crc32(os.fsencode(os.path.realpath(cache_folder)))
    return os.path.join(run_folder, f"{mark:08x}.sock")


def broker_socket_of(socket_path: str) -> str:
    """Return the socket where that node serves programs of other users, which can't enter the run directory."""
    directory, name = os.path.split(socket_path)
    return os.path.join(public_folder_of(directory), name)


def public_folder_of(run_folder: str) -> str:
    """Return the directory beside the run directory that is open to all users of the host."""
    return run_folder + ".public"


def rest_socket_of(socket_path: str) -> str:
    """Return the socket of that node's REST API. It does not end in `.sock`, because every such file is a node's
    socket."""
    return os.path.splitext(socket_path)[0] + ".rest"


def spill_of(socket_path: str) -> tuple[str, str]:
    """Return the directory of files that the node with that socket reads past its disks, and their name there."""
    directory, name = os.path.split(os.path.splitext(socket_path)[0])
    return directory, name


def _check_volumes(volumes: list[CacheVolume]) -> None:
    if not volumes:
        raise UsageError("no cache directory", why="at least one is needed", hint="--cache DIR:SIZE")
    for volume in volumes:
        if volume.capacity_bytes < CAPACITY_BYTES_MIN:
            raise UsageError(
                f"cache {volume.folder} of {volume.capacity_bytes} bytes",
                why="too small",
                hint="64 MiB at least",
            )
        _one_of(f"tier of cache {volume.folder}", volume.tier, TIERS)
    directories = [os.path.realpath(volume.folder) for volume in volumes]
    if len(set(directories)) < len(directories):
        raise UsageError("cache directories", why="one is named twice")


def _disk_first(volumes: list[CacheVolume]) -> list[CacheVolume]:
    """Return the volumes, of which the first has what must outlive a restart of the host: it is the first on a disk."""
    home = next((volume for volume in volumes if volume.tier != MEMORY), volumes[0])
    return [home, *(volume for volume in volumes if volume is not home)]


def _check_write(config: Config) -> None:
    modes = WriteModes.parse(config.write)
    if modes.copies_max > 1 and config.user:
        raise UsageError(
            f"setting write = {config.write!r}",
            why="only root can keep the owners of other nodes' files",
            hint="use back, or leave out user",
        )
    if modes.exclusive_tops and config.user:
        raise UsageError(
            f"setting write = {config.write!r}",
            why="only root can mount an exclusive directory",
            hint="leave out exclusive, or user",
        )


def _check_cluster(config: Config) -> None:
    if "@" in config.cluster:  # first: other messages repeat the URL
        raise UsageError(
            "setting cluster",
            why="the URL holds a user or a password",
            hint="set cluster_user, and cluster_password to a file of mode 0600",
        )
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
    credentials = config.cluster_certificate, config.cluster_key
    if len({bool(name) for name in credentials}) > 1:
        raise UsageError("settings cluster_certificate, cluster_key", why="both are needed, or none of them")
    if bool(config.cluster_user) != bool(config.cluster_password):
        raise UsageError("settings cluster_user, cluster_password", why="both are needed, or none of them")
    if tls:
        if not (config.cluster_authority or config.tls_authority):
            raise UsageError(
                f"setting cluster = {config.cluster!r}",
                why="the authority of etcd's certificate is missing",
                hint="set cluster_authority",
            )
    elif any(credentials) or config.cluster_authority or config.cluster_user:
        raise UsageError(
            f"setting cluster = {config.cluster!r}",
            why="certificates and passwords need TLS; without it they would be sent unencrypted",
            hint="write https://HOST:PORT[/NAME]",
        )


def _check_numbers(config: Config) -> None:
    """Refuse negative and infinite numbers and NaN: processes pass settings on as JSON, which has no infinity and no
    NaN."""
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
        *("request_limit_per_s", "bytes_limit_per_s", "concurrency_max", "verify", "events"),
        *("host", "port", "anon", "use_ssl", "project", "protocol"),  # of drivers of fsspec
    )
)
"""Options of an origin that are kept on disk and in the cluster's records. All others may be secret: each node takes
them from its own configuration or environment."""


def public_options(options: dict[str, str]) -> dict[str, str]:
    """Return the options that may be stored and shown. A value with a password in it (user:password@host) is
    excluded."""
    return {name: value for name, value in options.items() if name in PUBLIC_OPTIONS and "@" not in value}


def is_secret(option: str) -> bool:
    """Return whether an option of that name may hold a secret, which must not be shown or stored. The test prefers
    false positives: access_key_id is no secret, and is hidden."""
    return any(part in option.lower() for part in SECRET_PARTS)
