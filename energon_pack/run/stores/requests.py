"""Requests to object stores: tried again where that may help, counted, and their faults in one line.

A fault of the network is no fault of a sample. So it is an error that ends the run, whatever decoder it came through:
`losing_no_fault` raises it again where something took it for damaged data.
"""

import errno
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from energon_pack.errors import PackError, one_line

Result = TypeVar("Result")

#: How often a request is tried, and how long the first wait is; each wait is twice as long as the one before.
ATTEMPTS = 7
FIRST_WAIT = 0.25  # seconds: about 16 in all
#: Requests of this process by kind, those that failed among them, and the bytes they moved.
COUNTS: Counter[str] = Counter()
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
    wait = FIRST_WAIT
    for attempt in range(1, ATTEMPTS + 1):
        COUNTS[kind] += 1
        try:
            return request()
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", address) from None
        except Transient as error:
            COUNTS["retries"] += 1
            if attempt == ATTEMPTS:
                raise _fault(f"{address}: {kind} failed {attempt} times: {error}; the same command goes on") from None
            time.sleep(wait * random.uniform(0.5, 1))
            wait *= 2
        except Refused as error:
            raise _fault(f"{address}: {kind}: {error}") from None
    raise AssertionError


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
    return one_line(type(error)(str(error).partition("\n")[0].rstrip(" :")), 300)
