"""Build obstore's clients of S3, GCS, Azure and the web from Headrace's options, the environment and profile
files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.base.errors import UsageError
from headrace.origin.aws_profile import read_profile
from headrace.origin.object_calls import Stores
from headrace.origin.options import OriginOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

CONNECT_TIMEOUT_S = 5.0
PUT_TIMEOUT_S = 600.0
"""Seconds after which one request of a put fails: 64 MiB at 110 KiB/s. A shorter deadline of the put takes
precedence."""
AS_STORED = {"accept-encoding": "gzip"}
"""Headers that keep GCS from decompressing an object with Content-Encoding: gzip. It would send other bytes than it
lists, without a size, an ETag, or a range. Sent for objects only: a listing could come compressed."""
_KEY = ("access_key_id", "secret_access_key", "session_token")
_NO_RETRY: RetryConfig = {"max_retries": 0}
_PARTS_RETRY: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(minutes=10),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2},
}
_LISTING_RETRY: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


def _client(options: OriginOptions, endpoint: str) -> ClientConfig:
    timeout_s = options.timeout_s or 3600.0
    return {
        "allow_http": options.allow_http or endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, timeout_s)),
        "timeout": timedelta(seconds=timeout_s),
        "user_agent": "headrace",
    }


def _clients(
    make: Callable[[RetryConfig, ClientConfig], ObjectStore],
    client: ClientConfig,
    timeout_s: float,
    url: str,
    *,
    conditional: bool = False,
    object_headers: dict[str, str] | None = None,
) -> Stores:
    """Build the clients. object_headers: sent with requests for objects, and with no listing."""
    from obstore.exceptions import BaseError

    def with_headers(headers: dict[str, str], *, retries: bool) -> ObjectStore:
        return make(_PARTS_RETRY if retries else _NO_RETRY, {**patient, "default_headers": headers})

    of_objects: ClientConfig = {**client, "default_headers": object_headers} if object_headers else client
    patient: ClientConfig = {**client, "timeout": timedelta(seconds=max(timeout_s, PUT_TIMEOUT_S))}
    try:
        return Stores(
            make(_NO_RETRY, of_objects),
            make(_LISTING_RETRY, client),
            make(_NO_RETRY, patient),
            make(_PARTS_RETRY, patient),
            with_headers if conditional else None,
        )
    except (BaseError, ValueError, TypeError, OSError):
        # The message may quote a key or a service account, so it is dropped.
        raise UsageError(
            url,
            why="the origin's options are invalid",
            hint="check the formats of endpoint, account and keys",
        ) from None


def s3_options(options: OriginOptions, environment: Mapping[str, str]) -> OriginOptions:
    """Complete the options: the options themselves come first, then the environment (which obstore reads by itself),
    then a profile."""
    if options.anonymous or (options.access_key_id and not options.profile):
        return options
    if environment.get("AWS_ACCESS_KEY_ID") and not options.profile:
        return options
    profile = read_profile(options.profile, environment)
    if environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        profile.pop("region", None)  # the environment overrides a profile, as in AWS's own tools
    if environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"):
        profile.pop("endpoint", None)
    if options.access_key_id:  # all parts of a key come from one source
        profile = {name: value for name, value in profile.items() if name not in _KEY}
    missing: Any = {name: value for name, value in profile.items() if not getattr(options, name)}
    return replace(options, **missing)


def _key_of(options: OriginOptions) -> Callable[[], S3Credential] | None:
    """Return the complete credential. obstore would combine the option's key with the environment's secret or session
    token, and thus send a secret of one place to another."""
    if not options.access_key_id or options.anonymous:
        return None
    credential: S3Credential = {
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
        "token": options.session_token or None,
        "expires_at": None,
    }
    return lambda: credential


def s3_stores(url: str, bucket: str, raw_options: OriginOptions) -> Stores:
    from obstore.store import S3Store

    if bool(raw_options.access_key_id) != bool(raw_options.secret_access_key):
        raise UsageError(url, why="access_key_id and secret_access_key are only valid together")
    options = s3_options(raw_options, os.environ)
    environment = os.environ
    endpoint = (
        options.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    )
    path_style = options.path_style
    config: dict[str, Any] = {
        "region": options.region
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or "us-east-1",
    }
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
    if options.anonymous:
        config["skip_signature"] = True
    if path_style is not None:
        config["virtual_hosted_style_request"] = not path_style
    sums = options.put_checksums
    if sums or (sums is None and endpoint.startswith("http://")):
        # The signature needs a sha256 anyway; https protects bytes without it.
        config["checksum_algorithm"] = "sha256"
    client, key = _client(options, endpoint), _key_of(options)
    return _clients(
        lambda retry, client: S3Store(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options=client,
            retry_config=retry,
            credential_provider=key,
        ),
        client,
        options.timeout_s,
        url,
        conditional=True,
    )


def gcs_stores(url: str, bucket: str, options: OriginOptions) -> Stores:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    if options.endpoint:
        config["base_url"] = options.endpoint.rstrip("/")
    if options.service_account_path:
        config["service_account"] = os.path.expanduser(options.service_account_path)
    if options.token:
        config["bearer_token"] = options.token
    if options.anonymous:
        config["skip_signature"] = True
    client = _client(options, options.endpoint)
    return _clients(
        lambda retry, client: GCSStore(bucket, config=config, client_options=client, retry_config=retry),  # type: ignore[arg-type]
        client,
        options.timeout_s,
        url,
        object_headers=AS_STORED,
    )


def azure_stores(url: str, container: str, options: OriginOptions) -> Stores:
    from obstore.store import AzureStore

    config: dict[str, Any] = {}
    for name in ("endpoint", "account_name", "account_key", "token"):
        if getattr(options, name):
            config[name] = getattr(options, name)
    if options.anonymous:
        config["skip_signature"] = True
    if not options.account_name and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise UsageError(url, why="no storage account is configured", hint="set the option account_name")
    client = _client(options, options.endpoint)
    return _clients(
        lambda retry, client: AzureStore(container, config=config, client_options=client, retry_config=retry),  # type: ignore[arg-type]
        client,
        options.timeout_s,
        url,
    )


def web_stores(url: str, server: str, options: OriginOptions) -> Stores:
    """Build the clients of a web server. `server` is its scheme and host. The option token is sent as a bearer
    token."""
    from obstore.store import HTTPStore

    client = _client(options, server)
    if options.token:
        client["default_headers"] = {"authorization": f"Bearer {options.token}"}
    return _clients(
        lambda retry, client: HTTPStore(server, client_options=client, retry_config=retry),
        client,
        options.timeout_s,
        url,
    )
