"""Directives that write a page's tables from the one place where their facts live.

`hardware-table` comes from scaleout/spec/devices.py, `link-table` from scaleout/spec/hardware.py, `protocol-table` from
scaleout/spec/protocols.py, `execution-table` from what tools/notebooks.py stored in each notebook when it ran it.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import LINKS
from scaleout.spec.protocols import CALL, HOPS, PROTOCOLS, RING_SHARE
from scaleout.timing.band import CHIPS
from scaleout.words.amounts import quantity
from scaleout.words.tables import markdown

ROOT = Path(__file__).resolve().parents[2]
figure = partial(quantity, digits=4, trim=True)
RATES = ("fp32", "tf32", "fp16", "bf16", "fp8")


def hardware_rows() -> list[list[str]]:
    """One row a device; memory in GiB, as the driver reports it, rates in TFLOP/s, TB/s and GB/s one way."""
    rows = []
    for device in DEVICES.values():
        rates = (getattr(device, f"{name}_flop_per_s") for name in RATES)
        link = LINKS[device.link]
        rows.append(
            [
                device.name,
                figure(device.memory_bytes / 2**30),
                figure(device.memory_bytes_per_s / 1e12),
                *(figure(rate / 1e12) if rate else "–" for rate in rates),
                f"{device.fp16_flop_per_s / device.memory_bytes_per_s:.0f}",
                link.name,
                f"{link.one_way_bytes_per_s / 1e9:.0f}",
            ]
        )
    return rows


class MarkdownDirective(SphinxDirective):
    """A directive whose content is Markdown that it writes itself."""

    def lines(self) -> list[str]:
        """The Markdown, a line or several an item."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(self.lines()))


class HardwareTable(MarkdownDirective):
    """Every device of scaleout/spec/devices.py, then the sources."""

    def lines(self) -> list[str]:
        head = ["Device", "GiB", "TB/s", *(name.replace("tf", "TF") for name in RATES), "FLOP per byte", "Link", "GB/s"]
        sources = [
            f"- {gpu.name}: {gpu.source}. Memory: {gpu.memory_source}."
            + (f" Its kernels are taken for {CHIPS[gpu.priced_as]}'s, a guess." if gpu.priced_as else "")
            for gpu in DEVICES.values()
        ]
        rows = markdown(head, hardware_rows(), ("Device", "Link"))
        return [rows, "", ":::{dropdown} Sources", *sources, ":::"]


class LinkTable(MarkdownDirective):
    """Every link of scaleout/spec/hardware.py."""

    def lines(self) -> list[str]:
        rows = [
            [
                link.name,
                link.scope,
                link.source,
                figure(link.one_way_bytes_per_s / 1e9),
                f"{link.reached:.0%}",
            ]
            for link in LINKS.values()
        ]
        words = ("Link", "Where", "Source")
        return [markdown([*words, "GB/s one way", "reached"], rows, words)]


class ProtocolTable(MarkdownDirective):
    """What a ring pays under each of NCCL's protocols: seconds per call and a hop, and the share of the rate."""

    def lines(self) -> list[str]:
        rows = [
            [
                name,
                f"{CALL['ring'][index] * 1e6:.1f}",
                *(f"{hop[index] * 1e6:.1f}" for hop in HOPS["ring"].values()),
                f"{RING_SHARE[name]:.0%}",
            ]
            for index, name in enumerate(PROTOCOLS)
        ]
        hops = {"between GPUs": "NVLink", "host to GPU": "PCIe", "between nodes": "network"}
        head = ["Protocol", "a call, µs", *(f"a hop on {hops[scope]}, µs" for scope in HOPS["ring"]), "of the rate"]
        return [markdown(head, rows, ("Protocol",))]


class ExecutionTable(MarkdownDirective):
    """How each stored notebook was run: when, how long, with which versions, on what."""

    def lines(self) -> list[str]:
        self.env.note_reread()  # a notebook may have come
        rows = []
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            run = notebook["metadata"].get("execution")
            cells = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
            if run is None:
                raise self.error(f"{path.name} does not say how it was run: store it with `make notebooks`")
            rows.append(
                [
                    f"[{path.stem}](/notebooks/{path.name})",
                    run["machine"],
                    run["versions"],
                    run["date"],
                    str(cells),
                    str(run["seconds"]),
                ]
            )
        if not rows:
            return ["No notebook is stored yet."]
        words = ("Notebook", "Machine", "Versions", "Date")
        return [markdown([*words, "Code cells", "Seconds"], rows, words)]


DIRECTIVES = {
    "hardware-table": HardwareTable,
    "link-table": LinkTable,
    "protocol-table": ProtocolTable,
    "execution-table": ExecutionTable,
}
