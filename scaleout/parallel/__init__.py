"""Each technique in torch, from scratch and with the library that people use, behind one interface.

`transformer` is the book's model (`norm` its RMS norm), `recipe` its optimizer and training step; `hugging_face` makes
the models of transformers (an optional package). Written by hand are
`ring`, an all-reduce from sends and receives, `ddp`, `zero` and `fsdp` (over the units of `flat`), `tensor`
(`tensor_model`: the transformer in parts), `pipeline` (over the stages of `pipeline_stage`), `recompute`, attention in
tiles in `kernels`, three axes at once in `mesh` (`mesh_checks` checks what equal losses do not show), and Muon for
sharded matrices in `zero_muon`. `low` has low-precision numbers and layers that compute with them; `shard` is FSDP2
with the book's units. `step` is the interface of an implementation. `replicas`, `ddp_ways`, `zero_ways`
(`zero_deepspeed`: an optional package), `fsdp_ways`, `tensor_ways`, `pipeline_ways`, `recompute_ways`, `kernels_ways`
and `precision` have the implementations side by side, `kernels_fp8` FP8 in attention and in linear layers, `mesh_ways`
combines torch's on one mesh, and `parity` checks that all compute the same. `private` has all imports of torch's
private parts, for the higher rooms too.

Stands on the pure rooms. Sessions, options and output are in `lab`; measuring a run from outside is in `measure`.
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
