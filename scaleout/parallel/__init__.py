"""Each technique in torch: from scratch, and by the library that people use, behind one surface.

`transformer` is the book's model (`norm` its RMS norm), `recipe` its optimizer and training step. `ring` is all-reduce
from sends and receives; `ddp`, `zero` and `fsdp` (over the units of `flat`), `tensor` (`tensor_model`: the transformer
in parts), `pipeline` (over stages that `pipeline_stage` cuts), `recompute` and three axes at once, `mesh`
(`mesh_checks` asks its ranks what equal losses do not show), are by hand, and so is Muon for shards of matrices,
`zero_muon`; `low` has numbers of few bits and layers that compute with them; `shard` is FSDP2 by the book's units.
`step` says what a way to train is. `replicas`, `ddp_ways`, `zero_ways` (`zero_deepspeed`: an optional package),
`fsdp_ways`, `tensor_ways`, `pipeline_ways`, `recompute_ways` and `precision` set the ways side by side, `mesh_ways`
composes torch's on one mesh, `parity` asks whether all compute the same. `private` is the one door to torch's private
parts, for every room above too.

Stands on the pure rooms. Sessions, options and output are `lab`'s; what looks at a run from outside is `measure`'s.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    ddp="HOOKS",
    recipe="Training",
    replicas="ROUTES Replicas Settings",
    step="seconds_between stamp",
    transformer="Transformer",
)
