"""What goes wrong on a mesh and raises nothing: an axis that cuts or averages nothing, ranks that read other data, a
gradient that one axis never added up. Each is run beside one process, and told by the checks that find it."""

from __future__ import annotations

import torch.distributed as dist

from scaleout.lab import mesh as lab_mesh
from scaleout.measure.mesh import MeshWay, Spoken, batches, messages
from scaleout.parallel import mesh_checks, parity
from scaleout.parallel.mesh import Mesh

STEPS = 5
RATE = 0.1  # of SGD with momentum, so that weights move by what the gradients say
SHIFT = 1000  # steps further on lies what ranks along tp should not read


def refuse(o, layout) -> None:
    """ValueError, in one line, where a fault would change nothing."""
    axis = {"tensor": "tp", "data": "tp", "norms": "tp", "tie": "pp", "replicas": "dp"}[o.fault]
    if getattr(layout, axis) == 1:
        raise ValueError(
            f"--fault {o.fault} is about several ranks along {axis}: use 8 processes, and a --layout that "
            f"leaves {axis} above 1"
        )
    if o.fault == "norms" and not layout.sequence_parallel:
        raise ValueError(
            "--fault norms: without sequence parallelism every rank has a norm's whole gradient: add "
            "--sequence-parallel"
        )
    if o.fault == "tie" and not o.shape.tied_head:
        raise ValueError("--fault tie needs a tied head: use --form gpt")
    if layout.zero:
        raise ValueError("--fault is shown without ZeRO: leave out zero=1")
    if o.fault == "tensor" and layout.sequence_parallel:
        raise ValueError(
            "--fault tensor is shown without sequence parallelism, whose tokens would not fit: leave out "
            "--sequence-parallel"
        )


class Uncut(Mesh):
    """A mesh whose plan for matrices names modules that are not there: nothing is cut, and nothing says so."""

    def cut(self, model):
        group, alone = self.along["tp"], [dist.new_group([rank]) for rank in range(self.s.world)][self.s.rank]
        self.along["tp"] = self.s.among(alone)
        parts = super().cut(model)
        self.along["tp"] = group
        return parts


def sick(s, o, laid) -> MeshWay:
    """A way with the fault in it."""
    way = MeshWay(
        s, o, *laid, "hand", lab_mesh.order(o.order), "momentum", RATE, kind=Uncut if o.fault == "tensor" else Mesh
    )
    alone = [dist.new_group([rank]) for rank in range(s.world)][s.rank]
    if o.fault == "replicas":
        way.mesh.pipe.reducer.state = alone
    for part in way.mesh.parts.values() if o.fault == "norms" else ():
        part.sum_copies = lambda: None
    if o.fault == "tie":
        way.mesh.pipe.tie.weights = []
    return way


def show(s, o, laid, text) -> None:
    """Train a few steps with the fault, and print what there is to see."""
    s.say("\n" + lab_mesh.fault(*trial(s, o, laid, text)))


def trial(s, o, laid, text, steps: int = STEPS) -> tuple[list, float, dict[str, str]]:
    """Steps with the fault and without it in one process: as `lab.mesh.fault` is given them."""
    way, reference = sick(s, o, laid), MeshWay(s, o, *laid, "one", optimizer="momentum", rate=RATE)
    shift = SHIFT * way.place["tp"] if o.fault == "data" else 0
    losses, error, reasons = [], 0.0, {}
    for step in range(steps):
        batch, right = (batches(s, o, text, *laid, drawn) for drawn in (step + shift, step))
        with Spoken(way.grid) as seen:
            loss = way.gradients(batch)
        losses.append((s.mean(loss), reference.gradients(right)))
        if step == 0:
            mine, wanted = way.whole(gradients=True), reference.whole(gradients=True)
            error = parity.worst(s, mine, {name: wanted[name] for name in mine})
            reasons = findings(s, o, laid, way, batch, seen.found)
        way.update()
        reference.update()
    way.close()
    return losses, error, reasons


def findings(s, o, laid, way, batch, seen) -> dict[str, str]:
    """{check: what it says of a step, "" where it finds nothing}, the same on every rank."""
    mesh, sizes = way.mesh, [p.numel() for p in way.mesh.model.parameters()]
    expected = messages(o.shape, laid[1], o.seq, laid[0], way.place["pp"], sizes)
    sizes = {
        axis: [sum(call.bytes for call in side.get(axis, {}).values()) for side in (seen, expected)]
        for axis in expected
    }
    differences = [
        f"{measured:,.0f} bytes go along {axis} where {right:,.0f} should"
        for reasons in s.gathered(sizes)
        for axis, (measured, right) in reasons.items()
        if measured != right
    ]
    tokens = list(batch[0][way.place["dp"]])
    reasons = {"what each axis sends": differences[0] if differences else ""}
    for name, check in (
        ("assert_parts", lambda: mesh_checks.assert_parts(mesh)),
        ("assert_same_tokens", lambda: mesh_checks.assert_same_tokens(mesh, tokens)),
        ("assert_copies_agree", lambda: mesh_checks.assert_copies_agree(mesh)),
    ):
        try:
            check()
            reasons[name] = ""
        except RuntimeError as problem:
            reasons[name] = str(problem)
    return reasons
