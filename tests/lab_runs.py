"""How the tests start a lab as a reader does: torchrun and accelerate launch, as arguments of this Python."""

import os
import subprocess
import sys
from pathlib import Path

from scaleout.records import results

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
LAUNCH = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", "labs/launch/accelerate.yaml"]


def bash(*words, **environment):
    """A script or a line of bash, to its end, with no environment but PATH and what is given."""
    return subprocess.run(["bash", *words], cwd=ROOT, env={"PATH": os.environ["PATH"], **environment},
                          capture_output=True, text=True)


def run(words, timeout):
    """A lab, to its end, within `timeout` seconds."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=timeout)


def recorded(words, folder, timeout):
    """The Record of a run that went well, and what the run said."""
    out = folder / "record.json"
    done = run([*words, "--save", str(out)], timeout)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    return results.load(out), done.stdout
