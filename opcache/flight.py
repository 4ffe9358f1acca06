"""One thread at a time makes a key; the others wait for its result."""
from __future__ import annotations

import copy
import threading


class Flight:
    """A key being made by the thread `owner`."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.value: bytes | None = None
        self.error: Exception | None = None

    def result(self) -> bytes | None:
        """The value; None if the owner was interrupted. Raises a copy of the owner's error."""
        if self.error is not None:
            raise replica(self.error)
        return self.value


class Flights:
    """The keys being made in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, Flight] = {}

    def join(self, digest: str) -> tuple[Flight, bool]:
        """The flight of a key, and whether the caller must make it (and then call `finish`)."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is not None:
                return flight, False
            flight = self._flights[digest] = Flight()
            return flight, True

    def finish(self, digest: str, flight: Flight, value: bytes | None = None, error: Exception | None = None) -> None:
        flight.value, flight.error = value, error
        with self._lock:
            if self._flights.get(digest) is flight:
                del self._flights[digest]
        flight.done.set()


def replica(error: Exception) -> Exception:
    """A copy without the traceback, whose frames would keep tensors alive, or the error itself if it has no copy."""
    try:
        twin = copy.copy(error)
    except Exception:
        return error.with_traceback(None)
    if type(twin) is not type(error) or str(twin) != str(error):
        return error.with_traceback(None)
    if getattr(error, "__notes__", None):
        twin.__notes__ = list(error.__notes__)
    return twin
