"""What tests of the view `fsdp` share: a setting, its whole step, and the marks of its picture."""

import re
import xml.etree.ElementTree as ET

from scaleout import views
from scaleout.spec import topology
from scaleout.spec.hardware import DEVICES
from scaleout.spec.transformer import PRESETS
from scaleout.timing import fsdp_seconds
from scaleout.views import fsdp
from scaleout.views.choices import LINKS

SVG = "{http://www.w3.org/2000/svg}"
GIB = 2**30


def setting(**params):
    return fsdp._setting(views.clean("fsdp", params))


def entire(one):
    """The step of a setting with every block of it scheduled."""
    device, (most, across, adapters, rdma, _) = DEVICES[one.device], LINKS[one.link]
    gpus = min(most, one.ranks)
    on = topology.cluster(one.ranks // gpus, gpus, device.link, across, adapters, rdma)
    return fsdp_seconds.from_device(PRESETS[one.model], one.batch, one.tokens, device, on, one.sharding,
                                    dtype=device.half, checkpointing=one.checkpointing).timeline  # fmt: skip


def paths(svg):
    """[(title, d, fill)] of the picture's paths, in the order of drawing."""
    every = [(p.find(f"{SVG}title"), p.get("d"), p.get("fill")) for p in ET.fromstring(svg).iter(f"{SVG}path")]
    return [(title.text, d, fill) for title, d, fill in every if title is not None]


def bars(d):
    """[(x, width)] of a lane's path."""
    return [(float(x), float(w)) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", d)]
