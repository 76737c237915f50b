"""What tests of the view `fsdp` share: a setting, its whole step, and the marks of its picture."""

import re
import xml.etree.ElementTree as ET

from scaleout import views
from scaleout.timing import compute, exchange, machine
from scaleout.views import fsdp

SVG = "{http://www.w3.org/2000/svg}"
GIB = 2**30


def setting(**params):
    return fsdp._setting(views.clean("fsdp", params))


def entire(job):
    """The pass of a job with every block of it scheduled."""
    on = machine.of(job)
    work = compute.block(job, on), *compute.ends(job, on)
    return exchange.one_pass(job, on, work, job.sharding, job.shape.layers)


def paths(svg):
    """[(title, d, fill)] of the picture's paths, in the order of drawing."""
    every = [(p.find(f"{SVG}title"), p.get("d"), p.get("fill")) for p in ET.fromstring(svg).iter(f"{SVG}path")]
    return [(title.text, d, fill) for title, d, fill in every if title is not None]


def bars(d):
    """[(x, width)] of a lane's path."""
    return [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", d)]
