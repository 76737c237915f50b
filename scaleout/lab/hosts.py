"""Several "hosts" on one machine: network namespaces joined by a switch, over links of a chosen rate and latency.

    with Hosts(2) as hosts:                      Linux, root and iproute2; ValueError, one line, elsewhere
        hosts.shape(bits_per_s=200e6)
        process = hosts.start(1, ["python", "worker.py"])

Each host is a network namespace with one interface, `eth0`, and an address of its own. The switch is one more
namespace that holds a bridge, with one port a host. Nothing is made in the machine's own namespace, so no interface
there is touched, and a namespace that goes takes its interfaces along. Standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PREFIX = "scaleout"  # of the namespaces' names: PREFIX-pid-start-place
NETWORK = "10.77.0"  # addresses inside the namespaces only; nothing routes to them from outside
MOST_HOSTS = 4
BURST_SECONDS = 0.004  # of its rate is what a link lets through at once; what is longer goes at the rate
QUEUE_SECONDS = 0.05  # a packet that would wait longer in the link's queue is dropped
GOODPUT = 1448 / 1514  # of the rate is payload: 1500-byte packets less 52 of TCP/IP, plus 14 of Ethernet
PATIENCE = 5.0  # seconds between asking a process to end and ending it


def missing(platform=sys.platform, uid=None, which=shutil.which):
    """What this machine lacks for namespaces with shaped links, as words; "" where nothing is missing."""
    if not platform.startswith("linux"):
        return f"needs Linux, this is {platform}"
    if (os.geteuid() if uid is None else uid) != 0:
        return "needs root, to make network namespaces (try sudo)"
    absent = [tool for tool in ("ip", "tc") if which(tool) is None]
    return f"needs {' and '.join(absent)} (Debian: apt-get install iproute2)" if absent else ""


def refused():
    """What keeps this machine from having hosts, as words, "" where nothing does: what is `missing`, else a trial."""
    try:
        lack = missing()
        if not lack:
            with Hosts(2):
                pass
        return lack
    except ValueError as error:
        return str(error)


def burst(bits_per_s):
    """Bytes that a link of this rate lets through at once: 64 KiB or more, since the kernel sends such large pieces.

    A smaller burst loses rate on a busy machine: what a late timer does not hand out in time is gone.
    """
    return max(2**16, round(bits_per_s / 8 * BURST_SECONDS))


class Hosts:
    """`count` hosts (2 to 4) that see each other and nothing else; a context manager that leaves nothing behind.

    ValueError where the machine cannot do it (`missing`) or refuses a namespace. SIGTERM inside the block is turned
    into SystemExit, so that the end is the same as for an error or for Ctrl-C: processes first, then namespaces.
    """

    def __init__(self, count):
        if not 2 <= count <= MOST_HOSTS:
            raise ValueError(f"{count} hosts: use 2 to {MOST_HOSTS}")
        lack = missing()
        if lack:
            raise ValueError(lack)
        self.count, self.started, self.latency_applied = count, [], True
        self.prefix = f"{PREFIX}-{os.getpid()}-{_born(os.getpid())}"
        self.switch = f"{self.prefix}-switch"
        self.names = [f"{self.prefix}-{i}" for i in range(count)]

    def __enter__(self):
        sweep()
        self._handler = signal.signal(signal.SIGTERM, _stop)
        try:
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _join(self):
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")  # torchrun's agent talks to itself

    def address(self, host):
        """The IPv4 address (str) of host 0, 1, ... on its `eth0`."""
        return f"{NETWORK}.{host + 1}"

    def shape(self, bits_per_s=None, latency_seconds=0.0):
        """Give every link this rate, both ways, and this latency, one way. None: as fast as the machine goes.

        Both ends of each link are shaped, so a host can neither send nor receive faster. Latency needs the kernel's
        netem, on the switch's side; where there is none, `latency_applied` is False afterwards.
        """
        if bits_per_s is not None and bits_per_s < 1e6:
            raise ValueError(f"a link of {bits_per_s:g} bit/s: use at least 1e6")
        for i, name in enumerate(self.names):
            for place, device in ((name, "eth0"), (self.switch, f"port{i}")):
                _tc(place, "del", "dev", device, "root", fine=True)
                if bits_per_s is not None:
                    _tc(
                        place,
                        "add",
                        "dev",
                        device,
                        "root",
                        "handle",
                        "1:",
                        "tbf",
                        "rate",
                        f"{bits_per_s:.0f}bit",
                        "burst",
                        str(burst(bits_per_s)),
                        "latency",
                        f"{QUEUE_SECONDS * 1e3:.0f}ms",
                    )
            if latency_seconds:
                parent = ["root"] if bits_per_s is None else ["parent", "1:1"]
                self.latency_applied = _tc(
                    self.switch,
                    "add",
                    "dev",
                    f"port{i}",
                    *parent,
                    "netem",
                    "delay",
                    f"{latency_seconds * 1e6:.0f}us",
                    fine=True,
                )

    def start(self, host, command, **options):
        """Start `command` (list) on a host; returns the Popen. It is ended, with its children, by `close`."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command], start_new_session=True, **options
        )
        self.started.append(process)
        return process

    def close(self):
        """End every process on the hosts, then remove the hosts. Signals wait until it is done."""
        with _undisturbed():
            for name in [*self.names, self.switch]:
                _remove(name)
            for process in self.started:
                process.terminate()  # one that was not yet on its host when those there were asked to end
                process.wait(PATIENCE)
        if getattr(self, "_handler", None) is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None


def leftovers():
    """Names of namespaces that a lab left whose process is gone (killed with SIGKILL, say)."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]
    return [name for name in names if _born(name.split("-")[1]) != name.split("-")[2]]


def sweep():
    """Remove what killed runs left, with the processes that still run inside. Returns the namespaces' names."""
    names = leftovers()
    for name in names:
        _remove(name)
    return names


def inside(name):
    """Ids (list of int) of the processes in a namespace; those of a namespace that this module made are its own."""
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]


def _remove(name):
    """End what runs in a namespace of ours, politely first, and delete it."""
    end = time.monotonic() + PATIENCE
    for pid in inside(name):
        _kill(pid, signal.SIGTERM)
    while inside(name):
        if time.monotonic() > end:
            for pid in inside(name):
                _kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _kill(pid, sign):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def _born(pid):
    """When a process started, in the kernel's ticks (str); "" where there is none. A pid alone is used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stop(number, _):
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _undisturbed():
    """Hold back Ctrl-C and SIGTERM."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ip(*words):
    _command(["ip", *words])


def _tc(place, verb, *words, fine=False):
    return _command(["tc", "-n", place, "qdisc", verb, *words], fine)


def _command(words, fine=False):
    """Run one; True where it went well. ValueError with its message, unless failing is `fine`."""
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode and not fine:
        message = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise ValueError(f"the kernel refuses network namespaces here: {' '.join(words[:4])}: {message}")
    return result.returncode == 0
