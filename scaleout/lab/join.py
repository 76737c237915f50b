"""The rendezvous of a lab's processes, and the one line that is printed if it fails."""

import datetime
import os
import re
import socket
import time
import uuid

import torch.distributed as dist

from scaleout.lab.options import digits

MEETING = "LAB_MEETING"
LONGEST_S = 86_400.0  # of LAB_TIMEOUT


def timeout():
    """Seconds (float) that LAB_TIMEOUT gives; None where it gives none, which `check_timeout` refuses."""
    try:
        seconds = float(os.environ.get("LAB_TIMEOUT", "120"))
    except ValueError:
        return None
    return seconds if 0 < seconds <= LONGEST_S else None


def check_timeout():
    """ValueError, one line, for a LAB_TIMEOUT that is no time to wait."""
    if timeout() is None:
        raise ValueError(
            f"LAB_TIMEOUT is {os.environ['LAB_TIMEOUT'][:40]!r} in the environment: give seconds above 0, "
            f"{LONGEST_S:,.0f} at most"
        )


TIMEOUT_S = timeout() or 120.0  # for the others to come, and of a collective
GROUP_TIMEOUT = datetime.timedelta(seconds=TIMEOUT_S)


class Unmet(ConnectionError):
    """The processes did not find one another. Its text is the line to print."""


class Misplaced(ValueError):
    """The launcher's environment does not say where this process stands: each that sees it says so."""


def check_interface(names=None):
    """ValueError, one line, where gloo is told of a network interface (GLOO_SOCKET_IFNAME) that this machine has not.

    Each node says it of itself, by its first process.
    """
    text = os.environ.get("GLOO_SOCKET_IFNAME") if names is None else names
    present = [name for _, name in socket.if_nameindex()]
    absent = [name for name in (text or "").split(",") if name and name not in present]
    if absent:
        kind = Misplaced if os.environ.get("LOCAL_RANK", "0") == "0" else ValueError
        raise kind(
            f"GLOO_SOCKET_IFNAME is {text[:40]!r} in the environment, and {socket.gethostname()} has no "
            f"{absent[0][:40]}: use one of {', '.join(present)}"
        )


def number(name, default, lowest=0, highest=10**6):
    """A whole number from the launcher's environment. Misplaced where it is none, or not from lowest to highest."""
    text = os.environ.get(name, str(default))
    if not (digits(text) and len(text) < 10 and lowest <= int(text) <= highest):
        raise Misplaced(
            f"{name} is {text[:40]!r} in the environment, where a whole number from {lowest} to {highest} "
            "belongs: start the lab with python or torchrun"
        )
    return int(text)


def place():
    """(rank, world, rank on this node, processes on this node) from the launcher's environment.

    Misplaced for numbers that cannot be.
    """
    world = number("WORLD_SIZE", 1, 1)
    rank, local = number("RANK", 0, 0, world - 1), number("LOCAL_WORLD_SIZE", world, 1, world)
    return rank, world, number("LOCAL_RANK", 0, 0, local - 1), local


def attempt():
    """How often torchrun has restarted this job (int): after `meet`, the same on all ranks."""
    return number("TORCHELASTIC_RESTART_COUNT", 0)


def meeting():
    """What tells this attempt of a job from every other, the same on all ranks (str)."""
    return os.environ.get(MEETING) or str(attempt())


def store(prefix):
    """A connection of its own to the store that the launcher serves, apart from the keys of others."""
    connection = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=GROUP_TIMEOUT,
    )
    return dist.PrefixStore(prefix, connection)


def meet(rank, world):
    """The store that all `world` ranks share. Unmet where this process cannot serve it, reach it, or waits in vain.

    torchrun's agent serves it; without torchrun rank 0 does. Both ends are tried before torch is asked, because torch
    reports a port in use, or a rank 0 that is not there, with a page of C++ frames. A job that torchrun restarts meets
    in the same store: there the addresses of the attempt before must not be found.
    """
    address, port = _address(rank, world)
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        _free(port)
    else:
        _reach(rank, address, port)
    try:
        store = next(dist.rendezvous("env://", rank, world, timeout=GROUP_TIMEOUT))[0]
        return dist.PrefixStore(_meeting(store, rank, world), store)
    except dist.DistStoreError as error:
        came = re.search(r"(\d+)/(\d+) clients", str(error))
        if not came:
            raise
        raise _incomplete(came[1], world) from None


def wait_for_all(store, rank, world, local_world):
    """Wait until torch has connected all ranks: one that ends before would leave the others without a reason.

    local_world: processes on this node. Returns the number of nodes (int), which only all ranks together know: nodes
    may have different numbers of processes.
    """
    keys = [f"joined/{peer}" for peer in range(world)]
    store.set(f"joined/{rank}", str(local_world))
    store.wait(keys, GROUP_TIMEOUT)
    return round(sum(1 / int(processes) for processes in store.multi_get(keys)))


def _meeting(store, rank, world):
    """A name for this meeting that all ranks share and no earlier one had: rank 0's, told to whoever is here now.

    torchrun counts the restarts of its own node only, so that nodes disagree about them once one rank has died. The
    attempt is the most that any of them counted, and all go by it from here on.
    """
    mine = uuid.uuid4().hex
    store.set(f"here/{rank}", mine)
    if rank:
        try:
            store.wait([f"meeting/{mine}"], GROUP_TIMEOUT)
        except dist.DistStoreError:
            raise Unmet(f"rank {rank} waited {TIMEOUT_S:g} s for rank 0 (LAB_TIMEOUT sets the seconds)") from None
        name = store.get(f"meeting/{mine}").decode()
        store.set(f"{name}/came/{rank}", str(attempt()))
    else:
        name = mine
        store.set(f"{name}/attempt", str(_gather(store, name, world)))
    os.environ["TORCHELASTIC_RESTART_COUNT"] = store.get(f"{name}/attempt").decode()
    os.environ[MEETING] = name
    return name


def _gather(store, name, world):
    """Rank 0's part: tell every rank the name, wait for all, and return the most restarts that one counted (int)."""
    missing, end, counts = set(range(1, world)), time.monotonic() + TIMEOUT_S, [attempt()]
    while missing:
        if time.monotonic() > end:
            raise _incomplete(world - len(missing), world)
        for peer in sorted(missing):
            if store.check([f"{name}/came/{peer}"]):
                counts.append(int(store.get(f"{name}/came/{peer}")))
                missing.remove(peer)
            elif store.check([f"here/{peer}"]):  # may be of an attempt before, which nobody reads
                store.set(f"meeting/{store.get(f'here/{peer}').decode()}", name)
        time.sleep(0.01)
    return max(counts)


def _incomplete(came, world):
    return Unmet(
        f"{came} of {world} ranks came in {TIMEOUT_S:g} s: start the missing ones with the same MASTER_ADDR "
        "and MASTER_PORT (LAB_TIMEOUT sets the seconds)"
    )


def _address(rank, world):
    """(MASTER_ADDR, MASTER_PORT) of the environment."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise Unmet(
            f"rank {rank} of {world} has no {' and no '.join(missing)} in its environment: start the lab with torchrun"
        )
    return os.environ["MASTER_ADDR"], number("MASTER_PORT", 0, 1, 65_535)


def _free(port):
    """Refuse a port that somebody listens on."""
    try:
        listener(port).close()
    except (OSError, OverflowError) as error:
        raise Unmet(
            f"port {port} cannot be used ({_reason(error)}): choose another MASTER_PORT, or let torchrun "
            "find one with --standalone"
        ) from None


def listener(port):
    """A socket that listens on every address of this host, of IPv6 too where there is one. OSError where it cannot."""
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from None  # Python's text names the address again


def _reach(rank, address, port):
    """Wait until somebody listens at the address."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=max(0.1, min(5.0, TIMEOUT_S))):
                return
        except (OSError, OverflowError) as error:
            reason, unknown = _reason(error), isinstance(error, socket.gaierror)  # may be known a little later
        if time.monotonic() > end:
            fix = (
                f"the name {address} has no address here: use torchrun --local-addr, or add a line to /etc/hosts"
                if unknown
                else "start it there, or correct MASTER_ADDR and MASTER_PORT"
            )
            raise Unmet(
                f"rank {rank} found no rank 0 at {address}:{port} in {TIMEOUT_S:g} s ({reason}): {fix} "
                "(LAB_TIMEOUT sets the seconds)"
            )
        time.sleep(0.1)


def _reason(error):
    return (getattr(error, "strerror", None) or str(error)).lower()
