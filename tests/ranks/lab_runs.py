"""How the tests start a lab: by torchrun and accelerate launch as a reader does, or as a module.

In tests/ranks, sys.executable is a Python that has torch already (ready.py), and so is what these start.
"""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import processors
from pool import FIXED
from repo import ROOT

from scaleout.records import results

ENVIRONMENT = processors.follows(os.environ | FIXED)
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
LAUNCH = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", "labs/launch/accelerate.yaml"]
PATIENCE_S = 240  # for a run to its end, on a busy machine too


def bash(*words, **environment):
    """A script or a line of bash, to its end, with no environment but PATH and what is given."""
    return subprocess.run(
        ["bash", *words], cwd=ROOT, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True
    )


def run(words, **environment):
    """What Python runs with these words, to its end: a CompletedProcess."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def torchrun(words, world=2, **environment):
    """A lab by torchrun, to its end."""
    return run([*TORCHRUN, world, *words], **environment)


def accelerate(words, world=2, **environment):
    """A lab by accelerate launch, to its end."""
    return run([*LAUNCH, "--num_processes", world, *words], **environment)


def recorded(start, words, world, folder, **environment):
    """(Record, what was said) of a run that went well. start: torchrun, accelerate, or pool.lab."""
    out = folder / "record.json"
    done = start([*words, "--save", str(out)], world, **environment)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    return results.load(out), done.stdout


def without(words, flag):
    """Words of a lab without an option and its value: what shows one thing by itself refuses what it has no use for."""
    at = words.index(flag)
    return [*words[:at], *words[at + 2 :]]


def lab_module(name):
    """A lab's script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "labs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --- processes ----------------------------------------------------------------------------------------------


def free_port():
    """The number of a TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def alive(pid):
    """True where the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
