"""A profile of any kind through multi-storage-client, as Energon itself opens it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multistorageclient import StorageClient, StorageClientConfig
from multistorageclient.types import Range, RetryableError

from energon_pack.errors import PackError
from energon_pack.run.stores.client import Found, Objects
from energon_pack.run.stores.requests import Refused, Transient, said


class MscObjects(Objects):
    """The objects of a profile."""

    def __init__(self, profile: str):
        try:
            self._client = StorageClient(StorageClientConfig.from_file(profile=profile))
        except ValueError as error:
            raise PackError(f"msc://{profile}: {error}") from None

    def find(self, key: str) -> Found:
        with _named():
            found = self._client.info(key)
        if found.type != "file":
            raise FileNotFoundError(key)
        return _found(found)

    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        with _named():
            return memoryview(self._client.read(key, byte_range=Range(start, end - start))), None

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(self.read(key, start, end)[0]) for start, end in ranges]

    def entries(self, prefix: str) -> Iterator[tuple[str, Found]]:
        with _named():
            for item in self._client.list_recursive(path=prefix):
                yield item.key, _found(item)

    def put(self, key: str, data: bytes) -> None:
        with _named():
            self._client.write(key, data)

    def put_file(self, key: str, path: Path) -> None:
        with _named():
            self._client.upload_file(key, str(path))

    def delete(self, keys: Sequence[str]) -> None:
        with _named():
            for key in keys:
                self._client.delete(key)


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
