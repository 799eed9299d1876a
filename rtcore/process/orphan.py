"""A stopped process that loses its parent: it is woken, so that it can notice and end."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def wake_when_orphaned() -> None:
    """Have this process sent SIGCONT when the thread that started it ends (Linux: prctl(2), PR_SET_PDEATHSIG).

    While it is stopped (SIGSTOP, Ctrl-Z) no thread of it can see that its parent is gone, so it would keep its
    memory for good. SIGCONT does nothing to a process that runs, so it does not matter that a thread may end before
    its process does. Other systems have no such signal, and nothing is done there.
    """
    if sys.platform == "linux":
        # Where it is not allowed, all else of how a process ends with its parent is as before.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
