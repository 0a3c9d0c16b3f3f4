"""Requests to object stores: tried again where that may help, counted, and their faults in one line.

A fault of the network is no fault of a sample. So it is an error that ends the run, whatever decoder it came through:
`losing_no_fault` raises it again where something took it for damaged data.
"""

import errno
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from energon_pack.errors import PackError

Result = TypeVar("Result")

#: How often a request is tried, and how long the first wait is; each wait is twice as long as the one before.
ATTEMPTS = 7
FIRST_WAIT = 0.25  # seconds: about 16 in all
#: Seconds after which a request that failed twice is not tried again: a store that lets each wait would never end.
PATIENCE = 180.0
#: Seconds to be connected in, and between two pieces of an answer; a profile may have others.
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
#: Seconds in which a request has to be done, of at most 16 MiB.
REQUEST_SECONDS = 120.0
#: Requests of this process by kind, those that failed among them, and the bytes they moved.
COUNTS: Counter[str] = Counter()
#: What S3 calls faults that may be gone with the next request: keys are renewed by then, a change is done.
_PASSING = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestTimeout", "OperationAborted"))
#: Too late, beside another change, too often.
_PASSING_STATUS = frozenset((408, 409, 429))
_BAD_REQUEST = 400
#: What a store answers to a kind of request that it does not know.
UNKNOWN_REQUEST = 501
_faults: list["StoreError"] = []


class StoreError(PackError):
    """A store does not do what it is asked, however often."""


class Transient(Exception):
    """May go well the next time."""


class Refused(Exception):
    """Will not go well, however often it is tried."""


def tried(kind: str, address: str, request: Callable[[], Result]) -> Result:
    """The result of a request.

    Args:
        request: raises FileNotFoundError, Transient or Refused.

    Raises:
        FileNotFoundError: there is no such object.
        StoreError: it is refused, or failed every time.
    """
    pause, start = FIRST_WAIT, time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        COUNTS[kind] += 1
        try:
            return request()
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", address) from None
        except Transient as error:
            COUNTS["retries"] += 1
            if attempt == ATTEMPTS or (attempt > 1 and time.monotonic() - start > PATIENCE):
                text = f"{address}: {kind} failed {attempt} times: {error}; once it answers, the same command goes on"
                raise _fault(text) from None
            time.sleep(pause * random.uniform(0.5, 1))
            pause *= 2
        except Refused as error:
            raise _fault(f"{address}: {kind}: {error}") from None
    raise AssertionError


def within(seconds: float, request: Callable[[], Result]) -> Result:
    """The result of a request whose client may wait for ever; one that takes longer is left to its thread.

    Raises:
        Transient: it takes longer; and what the request raises.
    """
    result: Future[Result] = Future()

    def work() -> None:
        try:
            result.set_result(request())
        except Exception as error:  # whatever it is, who waits for the result has it
            result.set_exception(error)

    Thread(target=work, daemon=True).start()
    wait([result], seconds)
    if not result.done():
        raise Transient(f"no whole answer within {seconds:g} s")
    return result.result()


def fault_of(error: Exception, status: int | None, code: str | None = None) -> Transient | Refused:
    """What a client's error means for the same request, sent once more.

    Args:
        status: of the answer; None: there was none.
        code: what the store calls the fault, `NoSuchBucket` for one; None: it does not say.
    """
    text = said(error) + (f" ({code})" if code and code not in said(error) else "")
    if status is None or code in _PASSING or status in _PASSING_STATUS or (status >= 500 and status != UNKNOWN_REQUEST):
        return Transient(text)
    if status == _BAD_REQUEST and code is None:  # as HEAD is answered, which has no body, where keys have expired
        return Transient(text)
    if status < _BAD_REQUEST:
        return Refused(f"{text}: the bucket is in another region: set AWS_REGION, or region_name of its profile")
    return Refused(text)


def _fault(text: str) -> StoreError:
    error = StoreError(text)
    _faults.append(error)
    return error


@contextmanager
def losing_no_fault() -> Iterator[None]:
    """Raise a fault of a store once more where what read from it took it for damaged data.

    Raises:
        StoreError: there was one.
    """
    num_before = len(_faults)
    yield
    if len(_faults) > num_before:
        raise _faults[num_before]


def said(error: Exception) -> str:
    """What a client's error says, without what it adds for its own developers."""
    first = str(error).partition("\n")[0].partition("<?xml")[0].rstrip(" :")
    return f"{type(error).__name__}: {' '.join(first.split())[:300]}"
