"""A checkpoint and a power cut: what is on the disk at each step of writing it, and what the next start finds."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw import hatch, svg

FILE = 13  # CSS pixels, of a rank's file and of the manifest


@dataclass(frozen=True)
class Cut:
    """When the power goes; of the folder that is being written its name, the files that are whole (of two; .5: one is
    torn), and whether a manifest lists them; the step of the checkpoint that a start finds, or None."""

    moment: str
    name: str
    files: float
    manifest: bool
    resume_step: int | None
    old: bool = True


CUTS = (
    Cut("halfway over the old one", "step 10", 1.5, False, None, False),
    Cut("while ranks write", "temporary", 1.5, False, 10),
    Cut("before the manifest is there", "temporary", 2, False, 10),
    Cut("before the rename", "temporary", 2, True, 10),
    Cut("after the rename", "step 20", 2, True, 20),
    Cut("after the old one is removed", "step 20", 2, True, 20, False),
)  # fmt: skip


def power_cuts(width: float) -> str:
    """A row for each moment; on a phone its words stand above it."""
    roomy = svg.broad(width)
    left, pitch = (222, 34) if roomy else (0, 52)
    marks, y = [], 4.0
    for n, cut in enumerate(CUTS):
        if n == 1:  # the first is how not to do it
            marks.append(svg.line(0, y + 3, width, y + 3))
            y += 12
        baseline, size, top = (y + 17, svg.FONT, y) if roomy else (y + 12, svg.SMALL, y + 17)
        marks.append(svg.text(0, baseline, cut.moment, bold=n == 0, size=size))
        if cut.old:
            marks.append(_folder(left, top, "step 10", 2, True))
        marks.append(_folder(left + 120, top, cut.name, cut.files, cut.manifest))
        result, fill = (f"resumes at {cut.resume_step}", "ink") if cut.resume_step else ("no checkpoint", "accent")
        marks.append(svg.text(left + 254, top + 17, result, fill=fill, bold=True, size=svg.SMALL))
        y += pitch
    keys = [("c1", "a rank's file"), ("ink", "manifest")]
    for x, (fill, words) in zip((left, left + 120), keys, strict=True):
        marks += [svg.rect(x, y + 5, 10, 10, fill), svg.text(x + 15, y + 14, words, size=svg.SMALL)]
    outcomes = {cut.moment: f"step {cut.resume_step}" if cut.resume_step else "no checkpoint" for cut in CUTS}
    label = "; ".join(f"{moment}: {outcome}" for moment, outcome in outcomes.items())
    return svg.figure(width, y + 22, "".join(marks), f"What the next start finds after a power cut. {label}.")


def _folder(x: float, y: float, name: str, files: float, manifest: bool) -> str:
    """A folder with two files' places and the manifest's; one that has no name yet is dashed."""
    marks = [
        svg.frame(x + 0.5, y + 0.5, 112, 26, dash="4 3" if name == "temporary" else "", rounded=4),
        svg.text(x + 6, y + 17, name, size=svg.SMALLEST, fill="muted"),
    ]
    for n in range(2):
        file_x, part = x + 66 + n * 15, min(1.0, max(0.0, files - n))
        if part == 1:
            marks.append(svg.rect(file_x, y + 7, FILE, FILE, "c1"))
        elif part:
            marks.append(hatch.box(file_x, y + 7, FILE * part, FILE))
    if manifest:
        marks.append(svg.rect(x + 96, y + 7, FILE, FILE, "ink"))
    return "".join(marks)
