"""Access a profile of any kind through multi-storage-client, as Energon itself does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from multistorageclient import StorageClient, StorageClientConfig
from multistorageclient.types import Range

from energon_pack.run.stores import requests
from energon_pack.run.stores.requests import (
    PART_BYTES,
    PermanentError,
    SizeAndVersion,
    StoreClient,
    classify_error,
    error_text,
)


class MscObjects(StoreClient):
    """The objects of a profile.

    Args:
        by_time: take an object's time of writing as its version, because listings give other etags than single
            requests.
    """

    def __init__(self, profile: str, by_time: bool = False):
        self._by_time = by_time
        self._client = StorageClient(StorageClientConfig.from_file(profile=profile))

    def find(self, key: str) -> SizeAndVersion:
        meta = _with_time_limit(lambda: self._client.info(key))
        if meta.type != "file":
            raise FileNotFoundError(key)
        return self._found(meta)

    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        return memoryview(_with_time_limit(lambda: self._client.read(key, byte_range=Range(start, end - start)))), None

    def list_recursively(self, prefix: str) -> Iterator[tuple[str, SizeAndVersion]]:
        with _translated_errors():
            for item in self._client.list_recursive(path=prefix):
                yield item.key, self._found(item)

    def names(self, prefix: str) -> Iterator[str]:
        with _translated_errors():
            for item in self._client.list(path=prefix, include_directories=True):
                yield item.key if item.type == "file" else f"{item.key.rstrip('/')}/"

    def put(self, key: str, data: bytes) -> None:
        _with_time_limit(lambda: self._client.write(key, data))

    def put_file(self, key: str, path: Path) -> None:
        num_parts = 1 + path.stat().st_size // PART_BYTES
        _with_time_limit(lambda: self._client.upload_file(key, str(path)), num_parts)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            _with_time_limit(partial(self._client.delete, key))

    def _found(self, item: Any) -> SizeAndVersion:
        etag = "" if self._by_time else item.etag
        return SizeAndVersion(item.content_length, etag or f"{item.last_modified:%Y%m%d%H%M%S.%f}")


def _with_time_limit(request: Callable[[], Any], times: int = 1) -> Any:
    """Run a request with a time limit: its client alone would wait as long as any bytes come."""
    with _translated_errors():
        return requests.run_with_timeout(times * requests.REQUEST_SECONDS, request)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate the client's errors to those that `with_retries` expects."""
    try:
        yield
    except (FileNotFoundError, requests.TransientError):
        raise
    except Exception as error:  # multi-storage-client passes on some errors of the clients it uses
        status, code = _answer(error)
        if status is None and isinstance(error, PermissionError | NotImplementedError):
            raise PermanentError(error_text(error)) from None
        raise classify_error(error, status, code) from None


def _answer(error: BaseException) -> tuple[int | None, str | None]:
    """Find the status and code of a store's answer in an error of Google's clients or botocore, or in what it
    caused.
    """
    status = getattr(error, "code", None)
    if isinstance(status, int):
        return status, None
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        code = answer.get("Error", {}).get("Code")
        return answer.get("ResponseMetadata", {}).get("HTTPStatusCode"), code if code and not code.isdecimal() else None
    return (None, None) if error.__cause__ is None else _answer(error.__cause__)
