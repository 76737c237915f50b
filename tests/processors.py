"""The processors that tests pretend to run on: torch, oneDNN and MKL take from the environment which instructions they
may use, and their sums then differ in the last digits, as they do on a reader's machine.

Each library reads its variable at its first operation, so a process is one processor to its end. What a test starts (a
notebook's kernel, ranks, labs) is the processor of the test's file. A file that computes with torch itself needs a
worker that is that processor: of four workers the first is the first of PROCESSORS, the second the second, the others
are what they are.
"""

import functools
import os
import re
import zlib
from pathlib import Path

# MKL takes its own paths on AMD's processors, where MKL_ENABLE_INSTRUCTIONS changes nothing and COMPATIBLE does.
PROCESSORS = {
    "SSE 4": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "this one": {},
}
NAMES = list(PROCESSORS)
HERE = NAMES[-1]
VARIABLES = sorted({name for variables in PROCESSORS.values() for name in variables})
GIVEN = {name: os.environ[name] for name in VARIABLES if name in os.environ}  # then nothing is chosen here
TURN = int(os.environ.get("OTHER_CPU", "0"))  # 0, 1 or 2: with all three each file has been on every processor
COMPUTES = re.compile(r"^\s*(?:import|from) (?:torch|scaleout\.(?:parallel|measure))\b", re.M)
ROOT = Path(__file__).resolve().parent.parent
followers = [os.environ]


def follows(environment):
    """A dict of the variables that processes will start with: `start` sets them in it too."""
    followers.append(environment)
    return environment


def of(path):
    """The name of the processor that a file of tests is for."""
    name = Path(path).resolve().relative_to(ROOT).as_posix()
    return NAMES[(zlib.crc32(name.encode()) + TURN) % len(NAMES)]


@functools.cache
def computes(path):
    """Whether the process that runs a file of tests computes with torch itself."""
    return Path(path).suffix == ".py" and COMPUTES.search(Path(path).read_text()) is not None


def of_worker(name, count):
    """The processor that worker `name` ("gw0") of `count` is; the one that is here where there are too few of them."""
    return NAMES[min(int(name.removeprefix("gw")) % count, len(NAMES) - 1) if count >= len(NAMES) else -1]


def become(name):
    """Let this process be a processor, from its first operation on."""
    import torch

    start(name)
    numbers = torch.randn(64, 64)
    torch.nn.functional.gelu(numbers @ numbers)  # torch, MKL and oneDNN have read their variables


def start(name):
    """Let what this process starts from now on be a processor."""
    for environment in followers:
        for variable in VARIABLES:
            environment.pop(variable, None)
        environment.update(GIVEN or PROCESSORS[name])


def words(name):
    """What a failure says of its processor, and how to have it again."""
    variables = " ".join(f"{key}={value}" for key, value in (GIVEN or PROCESSORS[name]).items())
    return f"as one with {name}; to have it again: {variables} pytest ..." if variables else "the one that is here"
