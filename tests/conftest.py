"""What holds for every test."""

import gc
import importlib
import os
import signal
import sys
from pathlib import Path

import launching
import processors
import pytest
import ready
from xdist.scheduler import LoadFileScheduling

# Four workers share the cores: a second thread of each would only wait for the first. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Of tests/browser, what reads the built book, and what starts a browser of its own; all else shares pages of widgets.
BOOK = ("site_pages", "site", "card", "front", "projector")
ALONE = ("bench_site", "jupyterlab")

# Rooms whose tests start processes or a browser: four workers on two cores, and a clock now and then runs out. What
# fails there is run once more; a test that needed it is listed at the end of the run, so that it can be mended.
CLOCKS = ("browser", "lab", "ranks", "records")

sys.executable = ready.REAL

# A shell starts what it puts in the background with Ctrl-C ignored, and everything started from there inherits that.
# Tests interrupt labs, so a run of the tests in the background must not differ from one in front.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """The kernels of the notebooks have torch already, and so has all that they launch; one server is for all."""
    processors.follows(launching.ENVIRONMENT)
    if shared_out(config):
        processors.become(processor_here(config))
    if config.getoption("nbval", default=False):
        os.environ["READY"] = str(ready.folder())
        kernelspec = importlib.import_module("ipykernel.kernelspec")
        command = kernelspec.make_ipkernel_cmd
        kernelspec.make_ipkernel_cmd = lambda **given: command(executable=ready.python(), **given)


def pytest_xdist_setupnodes(config, specs):
    """Nor do the workers import torch, each for itself; what they start is a Python as it starts by itself."""
    for spec in specs if config.getoption("nbval", default=False) else ():
        spec.python = ready.python()


def processor_here(worker):
    """What a worker is (or a `config` in it): of `make test`'s four one has SSE, one AVX2, and two are as they are."""
    if not shared_out(worker):
        return processors.HERE
    return processors.of_worker(worker.workerinput["workerid"], worker.workerinput["workercount"])


def shared_out(worker):
    """Whether this is a worker of a run with notebooks: it has torch already."""
    return hasattr(worker, "workerinput") and getattr(worker, "config", worker).getoption("nbval", default=False)


def processor_of(item):
    """What a test runs on: a file that computes with torch itself, on what its worker is."""
    return processor_here(item.config) if processors.computes(item.path) else processors.of(item.path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    processors.start(processor_of(item))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections.append(("the processor", processors.words(processor_of(item))))
    return report


class Scopes(LoadFileScheduling):
    """By file, for tests of a file share launches; and tests in a browser share pages, each of which takes seconds to
    start Python: two workers have a browser, one with the widgets' pages, one with the book's.

    A file that computes with torch goes to a worker that is the processor the file is for, before those that any may
    take; so do the browsers, to workers that have no such files to wait for.
    """

    def _wanted(self, scope):
        """The processor that the worker of a scope has to be, None for any."""
        if scope in ("book", "widgets"):
            return processors.HERE
        return processors.of(scope) if processors.computes(scope) else None

    def _assign_work_unit(self, node):
        there = {one: processor_here(one) for one in self.nodes if one is node or not one.shutting_down}
        wanted = {scope: self._wanted(scope) for scope in self.workqueue}
        mine = [scope for scope, one in wanted.items() if one == there[node]]
        free = [scope for scope, one in wanted.items() if one not in there.values()]
        if not mine + free:
            node.shutdown()
            return
        self.workqueue.move_to_end((mine + free)[0], last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid):
        path = Path(nodeid.split("::")[0])
        name = path.stem.removeprefix("test_")
        if path.parent.name != "browser" or name in ALONE:
            return str(path)
        return "book" if name in BOOK else "widgets"


def pytest_xdist_make_scheduler(config, log):
    return Scopes(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    """Files that take long first, then those of rooms that have some: none of them is left to a single worker at the
    end."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent.name in CLOCKS:
            item.add_marker(pytest.mark.flaky(reruns=1))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    first = lambda item: item.path in slow or item.path.parent.name in ("notebooks", "browser")  # noqa: E731
    items.sort(key=lambda item: (not first(item), item.path.parent.name not in ("ranks", "views")))


def pytest_collection_finish():
    """Labs collect garbage: what thousands of collected tests hold is none, and need not be looked at each time."""
    gc.freeze()


@pytest.fixture(scope="module")
def forked_python():
    """Every Python that a test of this file starts has torch already (tests/ranks/ready.py)."""
    children = launching.children
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", ready.python())
        patch.setattr(launching, "children", lambda pid: children(ready.process_of(pid)))
        yield
