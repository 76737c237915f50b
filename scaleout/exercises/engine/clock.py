"""A clock that stands still while another process has the processor: on a busy machine right code takes long as well.

Linux says how long a process was ready to run and did not. Where nothing says it, this is the clock on the wall.
"""

from __future__ import annotations

import time
from pathlib import Path


def kept_waiting(pid: int | str = "self") -> float:
    """Seconds that the main thread of a process was ready and waited for a processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Clock:
    """Seconds of a process since now, without those that it waited for a processor; pid: of another process."""

    def __init__(self, pid: int | str = "self") -> None:
        self.pid, self.began = pid, time.monotonic()
        self.waited, self.computed = kept_waiting(pid), time.thread_time()

    def seconds(self) -> float:
        """On this clock."""
        return time.monotonic() - self.began - (kept_waiting(self.pid) - self.waited)

    def busy(self) -> float:
        """Seconds in which this process's main thread, which asks, computed or was ready to."""
        return time.thread_time() - self.computed + kept_waiting(self.pid) - self.waited
