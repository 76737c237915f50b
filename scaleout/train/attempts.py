"""What the attempts of one launch tell each other: torchrun's store, on whichever node it is, outlives a restart."""

import errno
import os
from contextlib import contextmanager

from scaleout.lab import join

FULL = (errno.ENOSPC, errno.EDQUOT)


class Final(ValueError):
    """No accident of the machine: started again, the job would end the same way. Its text is the line to print."""


def tell(name, text):
    """Leave a word for the attempts that come after this one; for nobody where no launcher would start one."""
    store = _store()
    if store is not None:
        store.set(name, text)


def message(name):
    """What an attempt of this launch, this one or one before, has left under a name (str), or None."""
    store = _store()
    return store.get(name).decode() if store is not None and store.check([name]) else None


@contextmanager
def for_good():
    """A Final inside, or a disk without room, ends the whole launch: attempts that come after it do nothing.

    torchrun starts every job again that failed, as often as --max-restarts says, and cannot be told not to. So each
    later attempt ends here at once, with the line of the first.
    """
    final = message("final") if join.attempt() else None
    if final:
        raise ValueError(f"restart {join.attempt()} does nothing, because it would end the same way: {final}")
    try:
        yield
    except Final as error:
        tell("final", str(error))
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        line = f"{error.filename or 'a file'}: {error.strerror.lower()}: free some space"
        tell("final", line)
        raise Final(line) from None


def _store():
    """A connection of its own to the store of torchrun's agent; None where there is none, or it is gone."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        return join.store("launch")
    except (RuntimeError, OSError, KeyError, ValueError):
        return None
