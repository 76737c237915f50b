"""What tests of FSDP's steps and of the view `fsdp` share: a setting, a whole step, and the marks of its picture."""

import re
import xml.etree.ElementTree as ET

from scaleout import views
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.transformer import PRESETS
from scaleout.timing import compute, exchange, machine
from scaleout.timing.job import step
from scaleout.views import fsdp

SVG = "{http://www.w3.org/2000/svg}"
GIB = 2**30
NODES = {"fast": ("ib-ndr", 8), "slow": ("ethernet-100g", 1)}


def setting(**params):
    return fsdp.Setting.of(views.clean("fsdp", params))


def entire(job):
    """The pass of a job with every block of it scheduled."""
    on = machine.from_datasheet(job)
    work = compute.block(job, on), *compute.ends(job, on)
    return exchange.one_pass(job, on, work, job.sharding, job.shape.layers)


def both(model, wrap, node, ranks=16, replicas=1, checkpointing="none", **how):
    """The timeline of a pass with every block of it scheduled, and the short one."""
    across, adapters = NODES[node]
    world, gpus = ranks * replicas, min(8, ranks * replicas)
    on = topology.cluster(world // gpus, gpus, "nvlink4", across, adapters, node == "fast")
    layout, offload = Layout(dp=world, zero=2 if how.get("reshard") is False else 3), how.pop("offload", False)
    how = Replicas(wrap=wrap, least_parameters=10**8, shards=ranks, offload="parameters" if offload else "none", **how)
    job = Job(
        PRESETS[model],
        1024,
        DEVICES["h100-sxm"],
        on,
        2,
        layout,
        Recipe(checkpointing=checkpointing),
        program("compiled"),
        how,
    )
    return entire(job), step(job).timeline


def paths(svg):
    """[(title, d, fill)] of the picture's paths, in the order of drawing."""
    every = [(p.find(f"{SVG}title"), p.get("d"), p.get("fill")) for p in ET.fromstring(svg).iter(f"{SVG}path")]
    return [(title.text, d, fill) for title, d, fill in every if title is not None]


def bars(d):
    """[(x, width)] of a lane's path."""
    return [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", d)]
