"""Send requests to object stores: repeat them where that may help, count them, and report errors in one line.

A network fault is not a damaged sample, so it must end the run. A decoder that reads from a store may take it for
damaged data; `reraising_store_errors` then raises it again.
"""

import errno
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple, TypeVar

from energon_pack.errors import PackError

#: The size of a part of an object that is written in parts; a store accepts 10,000 parts.
PART_BYTES = 16 << 20


Result = TypeVar("Result")

#: How often a request is tried. The first wait is `FIRST_WAIT_SECONDS`, and each is twice as long as the one before.
MAX_ATTEMPTS = 7
FIRST_WAIT_SECONDS = 0.25  # seconds: about 16 in all
#: Seconds after which a request that failed twice is not tried again: some stores let every request wait.
MAX_RETRY_SECONDS = 180.0
#: Limits for connecting, and between two pieces of an answer; a profile may set its own.
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
#: The limit for a whole request; it moves at most 16 MiB.
REQUEST_SECONDS = 120.0
#: This process's requests by kind, failed ones included, and the bytes they moved.
REQUEST_COUNTS: Counter[str] = Counter()
#: S3's codes for faults that may pass: by the next request, keys are renewed or another change is done.
_RETRY_CODES = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestTimeout", "OperationAborted"))
#: HTTP: request timeout, conflict, too many requests.
_RETRY_HTTP = frozenset((408, 409, 429))
_BAD_REQUEST = 400
#: The status for a kind of request that a store does not know.
UNKNOWN_REQUEST = 501
_store_errors: list["StoreError"] = []


class StoreError(PackError):
    """A store refuses a request, or fails every time."""


class TransientError(Exception):
    """An error that may pass if the request is sent again."""


class PermanentError(Exception):
    """An error that sending the request again does not change."""


def with_retries(kind: str, address: str, request: Callable[[], Result]) -> Result:
    """Send a request, repeat it after transient errors, and return its result.

    Raises:
        FileNotFoundError: there is no such object.
        StoreError: the request was refused, or failed every time.
    """
    pause, start = FIRST_WAIT_SECONDS, time.monotonic()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        REQUEST_COUNTS[kind] += 1
        try:
            return request()
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", address) from None
        except TransientError as error:
            REQUEST_COUNTS["retries"] += 1
            if attempt == MAX_ATTEMPTS or (attempt > 1 and time.monotonic() - start > MAX_RETRY_SECONDS):
                text = f"{address}: {kind} failed {attempt} times: {error}; once it answers, the same command goes on"
                raise _recorded_store_error(text) from None
            time.sleep(pause * random.uniform(0.5, 1))
            pause *= 2
        except PermanentError as error:
            raise _recorded_store_error(f"{address}: {kind}: {error}") from None
    raise AssertionError


def run_with_timeout(seconds: float, request: Callable[[], Result]) -> Result:
    """Run a request in a thread, because its client may wait for ever; after the limit, abandon the thread.

    Raises:
        TransientError: the limit is over.
        Exception: the error of the request.
    """
    result: Future[Result] = Future()

    def work() -> None:
        try:
            result.set_result(request())
        except Exception as error:  # `result` raises it
            result.set_exception(error)

    Thread(target=work, daemon=True).start()
    wait([result], seconds)
    if not result.done():
        raise TransientError(f"no whole answer within {seconds:g} s")
    return result.result()


def classify_error(error: Exception, status: int | None, code: str | None = None) -> TransientError | PermanentError:
    """Say whether a client's error may pass if the same request is sent again.

    Args:
        status: of the answer; None: there was no answer.
        code: the store's name for the error, such as `NoSuchBucket`; None: it gives none.
    """
    text = error_text(error) + (f" ({code})" if code and code not in error_text(error) else "")
    if status is None or code in _RETRY_CODES or status in _RETRY_HTTP or (status >= 500 and status != UNKNOWN_REQUEST):
        return TransientError(text)
    if status == _BAD_REQUEST and code is None:  # expired keys in a HEAD request, whose answer has no body for a code
        return TransientError(text)
    if status < _BAD_REQUEST:
        return PermanentError(f"{text}: the bucket is in another region: set AWS_REGION, or region_name of its profile")
    return PermanentError(text)


def _recorded_store_error(text: str) -> StoreError:
    error = StoreError(text)
    _store_errors.append(error)
    return error


@contextmanager
def reraising_store_errors() -> Iterator[None]:
    """Raise the error of a request at the end of this context, even if the code in it took that for damaged data.

    Raises:
        StoreError: an error occurred within the context.
    """
    num_before = len(_store_errors)
    yield
    if len(_store_errors) > num_before:
        raise _store_errors[num_before]


def error_text(error: Exception) -> str:
    """Return the text of a client's error without the parts meant for the client's developers."""
    first = str(error).partition("\n")[0].partition("<?xml")[0].rstrip(" :")
    return f"{type(error).__name__}: {' '.join(first.split())[:300]}"


class SizeAndVersion(NamedTuple):
    """Size and version of an object, which tell whether it has changed."""

    size: int
    version: str


class StoreClient(ABC):
    """The objects of a profile, by their keys. Methods raise FileNotFoundError, TransientError or PermanentError."""

    @abstractmethod
    def find(self, key: str) -> SizeAndVersion:
        """Return the present size (bytes) and version of an object."""

    @abstractmethod
    def read(self, key: str, start: int, end: int) -> tuple[memoryview, str | None]:
        """Return the bytes `start` to `end`, and their version (None: the store does not report it)."""

    @abstractmethod
    def list_recursively(self, prefix: str) -> Iterator[tuple[str, SizeAndVersion]]:
        """Yield the full key, size and version of each object below a prefix, which is a folder."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Yield the keys directly in a folder; those of folders end in a slash."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object: either whole, or not at all."""

    def put_if(self, key: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version; None: if it does not exist. Say whether it was written.

        A store without conditional writes is asked for the version first; a write between the two requests is lost.
        """
        try:
            now = self.find(key).version
        except FileNotFoundError:
            now = None
        if now == version:
            self.put(key, data)
        return now == version

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file, in parts if it is large."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are no error."""
