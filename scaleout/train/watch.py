"""Keeps watch over a training job: who asks it to stop, which rank hangs.

with Watch(s, faults) as watch:
    for step in ...:
        watch.begin(step)               # the pulse; without it for long, a thread asks who hangs
        ...                             # train; where ranks agree on their loss, they agree on watch.asked
"""

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

from scaleout.lab import join, start
from scaleout.parallel import private
from scaleout.records import flight

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE_S = join.TIMEOUT_S / 2  # before the collective's own time-out, which names nobody
WRITING = 10  # times as patient with one that answers, and is over a checkpoint
STUCK_S = 10.0  # from SIGTERM to the end of a process that does not come to its next step
LAST_WORD_S = 5.0  # left to the rank at fault to end first, so that the launcher names it
ROOT = str(Path(__file__).resolve().parents[2])
TIMED_OUT = re.compile(r"[Tt]imed?[ -]?out")
CHECKPOINT = "checkpoint"  # what a rank says that it is doing
CHECKPOINTS = "checkpoints"  # what the process group of train.checkpoint is called
RING = "100"  # collectives that a rank's flight recorder remembers


def remember_collectives():
    """Let torch's flight recorder, which is on by default, keep RING collectives instead of 2,000, for the watch reads
    all of them at every look: who came to which. Before the process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RING)


class Watch:
    """The watch of one process, to be used in a `with`. s: a lab.session.Session. faults: a faults.Faults, or None.

    asked: the signal (SIGTERM or SIGINT) by which this process was asked to stop, or None. Ranks are asked at different
    moments, or only one of them is: they must agree before they act.

    patience_s: seconds that a step (after the first, which may compile), a batch of a validation or a checkpoint may
    take until the ranks are asked who is behind: less than a collective waits, so that the question comes first. Who
    does not answer is named at once; who does, and is over a checkpoint, may take longer. log: a file that gets the
    line that names a hung rank, as JSON. alike: all ranks call as many collectives, so that fewer are behind.
    """

    def __init__(self, s, faults=None, patience_s=PATIENCE_S, log=None, alike=True):
        self.s, self.faults, self.patience_s, self.log, self.alike = s, faults, patience_s, log, alike
        self.asked, self.step, self.doing, self.pulses, self.since = None, -1, "start", 0, time.monotonic()
        self.over, self.before, self.ears, self.slowest = threading.Event(), {}, None, 0.0
        self.lost, self.settled = None, threading.Event()  # where a collective timed out; nobody can be asked

    def __enter__(self):
        self.before = {sign: signal.signal(sign, self._ask) for sign in SIGNALS}
        if self.s.world > 1:
            self.ears = socket.socketpair()  # a handler runs between two lines of Python: a thread that waits
            self.ears[1].setblocking(False)  # for others in C++ never comes to it, but this wakes the monitor
            signal.set_wakeup_fd(self.ears[1].fileno(), warn_on_full_buffer=False)
            threading.Thread(target=Monitor(self).run, daemon=True).start()
        return self

    def __exit__(self, kind, error, trace):
        if self.ears and isinstance(error, RuntimeError) and TIMED_OUT.search(str(error)):
            self.lost = stands(_last(trace))  # whoever waited is healthy: the monitor names another, and ends all
            self.settled.wait(8 * LAST_WORD_S)
        self.over.set()
        if self.ears:
            signal.set_wakeup_fd(-1)
        for sign, handler in self.before.items():
            signal.signal(sign, handler)
        if kind and kind is not KeyboardInterrupt and self.asked:  # the launcher ends all: another rank is why
            signal.signal(self.asked, signal.SIG_DFL)
            os.kill(os.getpid(), self.asked)
        return False

    def _ask(self, sign, _):
        if self.asked == sign == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        self.asked = signal.Signals(sign)

    def begin(self, step):
        """A step begins: the pulse, and the faults that strike here."""
        self.step = step
        self.pulse("step")
        if self.faults:
            self.faults.begin(step)

    def pulse(self, doing):
        """This rank is alive, at a "step", or at other work: "validation", "checkpoint"."""
        time_now = time.monotonic()
        self.slowest = max(self.slowest, time_now - self.since)
        self.doing, self.since, self.pulses = doing, time_now, self.pulses + 1

    def each(self, items, doing):
        """`items` as a list, each of which is a pulse when it is taken from it."""
        return _Pulses(self, items, doing)

    @property
    def still(self):
        """Seconds since the last pulse."""
        return time.monotonic() - self.since


class _Pulses(list):
    def __init__(self, watch, items, doing):
        super().__init__(items)
        self.watch, self.doing = watch, doing

    def __iter__(self):
        for item in super().__iter__():
            self.watch.pulse(self.doing)
            yield item


# --- who hangs ----------------------------------------------------------------------------------------------


class Monitor:
    """The thread of a rank that asks, when nothing moves, where everybody is, and names who holds the others up.

    It talks through the launcher's store, over a connection of its own: the training pays nothing for it.
    """

    def __init__(self, watch, store=None):
        self.watch, self.rank, self.world = watch, watch.s.rank, watch.s.world
        self.every_s = min(1.0, watch.patience_s / 4)
        self.store, self.main = store or join.store(f"watch-{join.meeting()}"), threading.main_thread().ident
        self.round, self.quiet = 0, 0.0  # of questions; until when this rank asks none

    def run(self):
        """Until the watch is over, or this process."""
        stopped, asks = None, True
        while not self.watch.over.is_set():
            stopped = stopped or self._listen()
            if stopped and self.watch.since < stopped < time.monotonic() - max(STUCK_S, 2 * self.watch.slowest):
                os._exit(128 + signal.SIGTERM)  # its main thread will never know
            try:
                if asks and (self._stuck() or self.store.check([self._key("asked")])):
                    self.store.set(self._key(f"at/{self.rank}"), json.dumps(self._report()))
                    self.store.set(self._key("asked"), "yes")
                    self._judge()  # comes back where somebody is at work
                    self.round, self.quiet = self.round + 1, time.monotonic() + self.watch.patience_s / 4
            except (RuntimeError, dist.DistError):
                asks = False  # the store is gone, and with it whom to ask
                self.watch.settled.set()

    def _listen(self):
        """Wait a moment, or for a signal that ends the process: when it came (monotonic seconds), else None."""
        if select.select([self.watch.ears[0]], [], [], self.every_s)[0]:
            return time.monotonic() if set(self.watch.ears[0].recv(64)) & set(SIGNALS) else None
        return None

    def _key(self, name):
        return f"{self.round}/{name}"

    def _stuck(self):
        return self.watch.lost or (
            time.monotonic() > self.quiet and self.watch.pulses > 1 and self.watch.still > self.watch.patience_s
        )

    def _report(self):
        watch = self.watch
        patience = watch.patience_s * (WRITING if watch.doing == CHECKPOINT else 1)
        return {
            "step": watch.step,
            "doing": watch.doing,
            "still": round(watch.still, 1),
            "calls": calls_made() if watch.alike else 0,
            "at": watch.lost or stands(sys._current_frames().get(self.main)),
            "lost": watch.lost is not None,
            "busy": watch.pulses < 2 or watch.still < patience,
        }

    def _judge(self):
        """Wait for the others' answers. Then the lowest rank that answered decides: all go on, or it speaks, and all
        end, the culprit first."""
        self._until(
            lambda: self.store.check([self._key(f"at/{rank}") for rank in range(self.world)]), 3 * self.every_s + 2
        )
        reports = {
            rank: json.loads(self.store.get(self._key(f"at/{rank}")))
            for rank in range(self.world)
            if self.store.check([self._key(f"at/{rank}")])
        }
        guilty, line = verdict(reports, self.world)
        if self.rank == min(reports):
            going = work_goes_on(reports, self.world)
            if not going:
                self._speak(line)
            self.store.set(self._key("said"), "on" if going else "end")
        self._until(lambda: self.store.check([self._key("said")]), LAST_WORD_S)
        if self.store.check([self._key("said")]) and self.store.get(self._key("said")) == b"on":
            return
        if self.rank not in guilty and set(guilty) & set(reports):  # the first to end has the others ended
            time.sleep(LAST_WORD_S)
        os._exit(1)

    def _speak(self, line):
        print(f"{start.name()}: {line}", file=sys.stderr, flush=True)
        if self.watch.log:
            with Path(self.watch.log).open("a") as stream:
                stream.write(json.dumps({"time": time.time(), "failure": line}) + "\n")

    def _until(self, condition, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not condition():
            time.sleep(0.1)


def work_goes_on(reports, world):
    """True where every rank answers, no collective has timed out, and somebody has not been still for too long."""
    return (
        len(reports) == world
        and not any(report["lost"] for report in reports.values())
        and any(report["busy"] for report in reports.values())
    )


def verdict(reports, world):
    """(ranks at fault, the line that names them). reports: {rank: report} of those that answered.

    Who does not answer is frozen or gone. Else the rank in the lowest step is at fault, then the one with the fewest
    collectives, then the one that is in none.
    """
    silent = [rank for rank in range(world) if rank not in reports]
    if silent:
        return silent, (
            f"{_ranks(silent)} do{'es' if _s(silent) else ''} not answer: frozen, or the machine is gone. "
            f"The others wait in step {max(r['step'] for r in reports.values())}"
        )
    for key in (lambda r: r["step"], lambda r: r["calls"], lambda r: r["at"]["collective"]):
        least = min(key(report) for report in reports.values())
        culprits = [rank for rank, report in reports.items() if key(report) == least]
        if len(culprits) < world:
            first = reports[culprits[0]]
            waiting = [rank for rank in range(world) if rank not in culprits]
            place = first["doing"] if first["doing"] == "step" else f"the {first['doing']} after step"
            return culprits, (
                f"{_ranks(culprits)} hang{_s(culprits)} in {place} {first['step']} for {first['still']:.0f} s, "
                f"at {first['at']['line']}; {_ranks(waiting)} wait{_s(waiting)} for it"
            )
    return [], (
        f"no rank has moved for {min(r['still'] for r in reports.values()):.0f} s in step {reports[0]['step']}, "
        f"all at {reports[0]['at']['line']}: look at the network between them"
    )


def _ranks(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _s(ranks):
    """The ending of a verb."""
    return "s" if len(ranks) == 1 else ""


def stands(frame):
    """Where a thread is, by its frame: {"line": "labs/x.py:7 in f", "collective": whether torch waits there}."""
    inner, collective = None, False
    while frame:
        name = frame.f_code.co_filename
        if inner is None and "torch/distributed" in name.replace(os.sep, "/"):
            collective = True
        if name.startswith(ROOT) and "site-packages" not in name:
            inner = inner or f"{flight.shorten(name, ROOT)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return {"line": inner or "an unknown place", "collective": collective}


def _last(trace):
    """The frame in which an exception was raised."""
    while trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame


def calls_made():
    """Collectives that this rank has begun, as far as its flight recorder counts (int); 0 where it is off.

    Those of the thread that writes checkpoints do not count: it goes on when the training hangs.
    """
    last = {}
    for entry in json.loads(private.flight_json(True, False)).get("entries", []):
        name, label = entry["process_group"]
        if label != CHECKPOINTS and not entry["is_p2p"]:
            last[name] = max(last.get(name, 0), entry["collective_seq_id"])
    return sum(last.values())
