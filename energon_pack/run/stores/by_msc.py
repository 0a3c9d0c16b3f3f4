"""A profile of any kind through multi-storage-client, as Energon itself opens it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from multistorageclient import StorageClient, StorageClientConfig
from multistorageclient.types import Range, RetryableError

from energon_pack.errors import PackError
from energon_pack.run.stores import requests
from energon_pack.run.stores.client import PART_BYTES, Found, Objects
from energon_pack.run.stores.requests import Refused, Transient, said


class MscObjects(Objects):
    """The objects of a profile."""

    def __init__(self, profile: str):
        try:
            self._client = StorageClient(StorageClientConfig.from_file(profile=profile))
        except ValueError as error:
            raise PackError(f"msc://{profile}: {error}") from None

    def find(self, key: str) -> Found:
        found = _asked(lambda: self._client.info(key))
        if found.type != "file":
            raise FileNotFoundError(key)
        return _found(found)

    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        return memoryview(_asked(lambda: self._client.read(key, byte_range=Range(start, end - start)))), None

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(self.read(key, start, end)[0]) for start, end in ranges]

    def entries(self, prefix: str) -> Iterator[tuple[str, Found]]:
        with _named():
            for item in self._client.list_recursive(path=prefix):
                yield item.key, _found(item)

    def put(self, key: str, data: bytes) -> None:
        _asked(lambda: self._client.write(key, data))

    def put_file(self, key: str, path: Path) -> None:
        num_parts = 1 + path.stat().st_size // PART_BYTES
        _asked(lambda: self._client.upload_file(key, str(path)), num_parts)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            _asked(partial(self._client.delete, key))


def _asked(request: Callable[[], Any], times: int = 1) -> Any:
    """The result of a request; its client waits for the next bytes as long as there come some."""
    with _named():
        return requests.within(times * requests.REQUEST_SECONDS, request)


@contextmanager
def _named() -> Iterator[None]:
    """Errors as `tried` knows them."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (PermissionError, NotImplementedError) as error:
        raise Refused(said(error)) from None
    except (RetryableError, RuntimeError, OSError) as error:
        raise Transient(said(error)) from None


def _found(item: Any) -> Found:
    return Found(item.content_length, item.etag or f"{item.last_modified:%Y%m%d%H%M%S.%f}")
