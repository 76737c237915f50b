"""Hosts of labs that are network namespaces: whether there can be some here, and which a process has made."""

import subprocess

import pytest
import ready

from scaleout.lab import hosts

LACK = hosts.refused()
real = pytest.mark.skipif(bool(LACK), reason=f"no real hosts here: {LACK}")


def of(pid):
    """Names of the network namespaces that process `pid` made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return {name for name in listed if name.startswith(f"{hosts.PREFIX}-{ready.process_of(pid)}-")}
