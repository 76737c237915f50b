"""One rank on each of several hosts, whose links are shaped as rank 0 asks: for labs about links. Standard library
only."""

import os
import sys
import tempfile
import time
from pathlib import Path

from scaleout.lab import launch, leash, limits
from scaleout.lab.hosts import Hosts
from scaleout.records import files, provenance, results

PORT = 29500  # inside the namespaces: nobody else is there
LIMIT = 900.0  # seconds for a whole run


def rates(text, flag):
    """Link rates in Mbit/s (list of float), fastest first. ValueError where one is not a rate."""
    try:
        values = sorted({float(word) for word in text.split(",")}, reverse=True)
    except ValueError:
        values = []
    if not values or not all(1 <= rate <= 1e5 for rate in values):
        raise ValueError(f"{flag} {text}: give Mbit/s from 1 to 100000, such as 1000,200")
    return values


def threads(count):
    """CPU threads of a rank, where `count` hosts share this machine's."""
    return max(1, limits.cores() // count)


def run(module, plan, count, root, latency_seconds=0.0, processes=1):
    """Run `python -m module FOLDER` on `count` hosts, `processes` ranks on every one; (what it wrote to found.json,
    whether the latency was applied).

    plan: a dict for plan.json in that folder, with "threads". root: Path of the book, to import from. ValueError, one
    line, with what the ranks said where they failed.
    """
    with launch.ending(), tempfile.TemporaryDirectory(prefix="slow-link-") as name:
        folder = Path(name)
        files.write_json(plan, folder / "plan.json")
        leash_ = leash.Leash(folder / "alive")
        try:
            with Hosts(count) as hosts:
                _start(module, hosts, folder, plan["threads"], root, processes)
                _serve(module, hosts, folder, latency_seconds)
                return files.read_json(folder / "found.json"), hosts.latency_applied
        finally:
            leash_.end()


def _torchrun(module, hosts, host, folder, processes):
    """The command of one host's torchrun. Every agent must know whether the rendezvous is its own (is_host)."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(hosts.count),
        "--nproc-per-node",
        str(processes),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{hosts.address(0)}:{PORT}",
        "--rdzv-id",
        "slow-link",
        "--rdzv-conf",
        f"is_host={int(host == 0)}",
        "--local-addr",
        hosts.address(host),
        "-m",
        module,
        str(folder),
    ]


def _start(module, hosts, folder, threads, root, processes):
    """Start torchrun on every host, its output in `folder`."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
        "LAB_DEVICE": "cpu",
        leash.NAME: str(folder / "alive"),
        "TMPDIR": str(folder),  # torchrun leaves folders there
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    for host in range(hosts.count):
        with (folder / f"log-{host}").open("w") as log:
            hosts.start(
                host, _torchrun(module, hosts, host, folder, processes), env=environment, stdout=log, stderr=log
            )


def _serve(module, hosts, folder, latency_seconds):
    """Shape the links as rank 0 asks, until the run has ended. ValueError with its last line where it fails."""
    end, number = time.monotonic() + LIMIT, -1
    while any(process.poll() is None for process in hosts.started):
        if (folder / "ask.json").exists():
            request = files.read_json(folder / "ask.json")
            if request["number"] != number:
                hosts.shape(request["rate"], latency_seconds)
                number = request["number"]
                (folder / f"shaped-{number}").touch()
        if time.monotonic() > end or any(process.returncode for process in hosts.started):
            break
        time.sleep(0.01)
    if not (folder / "found.json").exists():
        script = f"{module.replace('.', '/')}.py: "
        lines = [
            line
            for host in range(hosts.count)
            for line in (folder / f"log-{host}").read_text().splitlines()
            if line.startswith(script)
        ]
        raise ValueError(
            lines[0].removeprefix(script)
            if lines
            else f"the run ended early: is there memory for {hosts.count} processes?"
        )


# --- what is kept --------------------------------------------------------------------------------------------


def record(stem, tier, facts, count, link, batch, seq, case, **fields):
    """The Record of steps on `count` hosts that are namespaces.

    facts: the fields that a rank knows (dict). link: what limits it, in words. batch: sequences of a step, None where
    nothing is trained. case: what a
    rank wrote of its steps, "step_seconds" and "losses" (dict).
    """
    seconds = case["step_seconds"]
    circumstances = {
        "commit": provenance.commit(),
        "command": provenance.command_line(),
        "nodes": count,
        "interconnect": f"{count} network namespaces on one machine, veth and a bridge, {link}",
    }
    return results.Record(
        stem=stem,
        tier=tier,
        **facts | circumstances,
        effective_batch=batch,
        sequence_length=seq,
        precision="fp32",
        checkpoint_cadence="none",
        step_seconds=seconds,
        warmup_steps=0,
        losses=case["losses"],
        peak_memory={},
        tokens_per_second=results.tokens_per_second(seconds, 0, batch, seq) if batch else None,
        **fields,
    )


def limited(rate):
    """A link of so many bit/s in words, None: without a limit."""
    return f"{rate / 1e6:g} Mbit/s by tbf" if rate else "no limit"
