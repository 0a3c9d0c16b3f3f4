"""Access an S3 bucket through obstore: a request takes a fraction of the processor time that other clients need."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import S3Store

from energon_pack.run.stores import requests
from energon_pack.run.stores.requests import (
    PART_BYTES,
    PermanentError,
    SizeAndVersion,
    StoreClient,
    classify_error,
    error_text,
)

#: Settings of a profile that this client knows, or that do not change what is read.
KNOWN_OPTIONS = {"base_path", "region_name", "endpoint_url", "profile_name", "verify", "signature_version"} | {
    *("max_pool_connections", "connect_timeout", "read_timeout", "retries", "max_concurrency"),
    *("multipart_threshold", "multipart_chunksize", "io_chunksize", "rust_client"),
}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REDIRECT = 301, "redirect without LOCATION"  # obstore reports a redirect by this text, without the status
_CONFLICT = 409  # another write of the same object is under way


class ObstoreObjects(StoreClient):
    """The objects of a profile."""

    def __init__(self, options: Mapping[str, Any], credentials: Mapping[str, str]):
        bucket, _, prefix = str(options["base_path"]).strip("/").partition("/")
        session = boto3.Session(
            credentials.get("access_key"),
            credentials.get("secret_key"),
            credentials.get("session_token"),
            profile_name=options.get("profile_name"),
        )
        chosen = {name: options[name] for name in ("region_name", "endpoint_url") if options.get(name)}
        meta = session.client("s3", **chosen).meta  # boto3 looks at the environment, files and defaults
        config: Any = {"region": meta.region_name}
        if not meta.endpoint_url.rstrip("/").endswith("amazonaws.com"):
            config["endpoint"] = meta.endpoint_url
        given = None if options.get("signature_version") == "UNSIGNED" else session.get_credentials()
        client: Any = {
            "connect_timeout": timedelta(seconds=options.get("connect_timeout", requests.CONNECT_SECONDS)),
            "read_timeout": timedelta(seconds=options.get("read_timeout", requests.READ_SECONDS)),
            "timeout": timedelta(seconds=requests.REQUEST_SECONDS),
            "allow_http": meta.endpoint_url.startswith("http://"),
        }
        verify = options.get("verify", True)
        if isinstance(verify, str):
            client["root_certificate"] = Path(verify).read_bytes()
        else:
            client["allow_invalid_certificates"] = not verify
        if given is None:
            config["skip_signature"] = True

        def store(retry: Any) -> S3Store:
            asking = None if given is None else _credential_provider(given)
            options: Any = {"config": config, "client_options": client, "retry_config": retry}
            return S3Store(bucket, prefix=prefix or None, credential_provider=asking, **options)

        self._store = store({"max_retries": 0})  # `with_retries` repeats requests, and counts them
        # If one part fails, the parts before it need not be sent again.
        backoff = {"init_backoff": timedelta(seconds=requests.FIRST_WAIT_SECONDS), "max_backoff": timedelta(seconds=8)}
        patience = timedelta(seconds=requests.MAX_RETRY_SECONDS)
        self._in_parts = store({"max_retries": requests.MAX_ATTEMPTS, "backoff": backoff, "retry_timeout": patience})

    def find(self, key: str) -> SizeAndVersion:
        with _translated_errors():
            return _found(obstore.head(self._store, key))

    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str]:
        with _translated_errors():
            result = obstore.get(self._store, key, options={"range": (start, end)})
            return memoryview(result.bytes()), _version(result.meta)

    def list_recursively(self, prefix: str) -> Iterator[tuple[str, SizeAndVersion]]:
        with _translated_errors():
            for batch in obstore.list(self._store, prefix, chunk_size=1000):
                for meta in batch:
                    yield meta["path"], _found(meta)

    def names(self, prefix: str) -> Iterator[str]:
        with _translated_errors():
            listing = obstore.list_with_delimiter(self._store, prefix)
            yield from (meta["path"] for meta in listing["objects"])
            yield from (f"{folder}/" for folder in listing["common_prefixes"])

    def put(self, key: str, data: bytes) -> None:
        with _translated_errors():
            obstore.put(self._store, key, data, use_multipart=False)

    def put_if(self, key: str, data: bytes, version: str | None) -> bool:
        mode: Any = "create" if version is None else {"e_tag": f'"{version}"'}
        with _translated_errors():
            try:
                obstore.put(self._store, key, data, use_multipart=False, mode=mode)
            except (AlreadyExistsError, PreconditionError) as error:
                if _status_of(error) == _CONFLICT:
                    raise
                return False
            except GenericError as error:
                if _status_of(error) != requests.UNKNOWN_REQUEST:
                    raise
                return super().put_if(key, data, version)
        return True

    def put_file(self, key: str, path: Path) -> None:
        with _translated_errors():
            obstore.put(self._in_parts, key, path, chunk_size=PART_BYTES, max_concurrency=4)

    def delete(self, keys: Sequence[str]) -> None:
        with _translated_errors():
            obstore.delete(self._store, list(keys))


def _credential_provider(credentials: Any) -> Callable[[], Any]:
    """Return a function that gets boto3's credentials for each request: boto3 renews them when they are due."""

    def ask() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc),
        }

    return ask


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate the client's errors to those that `with_retries` expects."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        text = str(error)
        status, code = _status_of(error), _CODE.search(text)
        moved = _REDIRECT[0] if _REDIRECT[1] in text else None
        if status is None and moved is None and not isinstance(error, GenericError | OSError):
            raise PermanentError(error_text(error)) from None
        raise classify_error(error, moved if status is None else status, code and code[1]) from None


def _status_of(error: Exception) -> int | None:
    status = _STATUS.search(str(error))
    return int(status[1]) if status else None


def _found(meta: Any) -> SizeAndVersion:
    return SizeAndVersion(meta["size"], _version(meta))


def _version(meta: Any) -> str:
    return (meta["e_tag"] or f"{meta['last_modified']:%Y%m%d%H%M%S.%f}").strip('"')
