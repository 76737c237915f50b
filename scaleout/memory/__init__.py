"""Bytes: what one rank holds through a training step, by kind and by moment. Pure; stands on `spec`.

`job` is the door: what each rank of a job holds; `accounts` has an account of a step, and where it is fullest. `states`
has what stays, `activations` what each operation keeps; `forward` and `backward` follow one block allocation by
allocation onto a `tape`, `loss` the end of a model, `walk` the whole step. `recompute` has the tiles of a block, what
making each again takes, and policies that drop some; `recompute_walk` walks a step under one. `pipeline` counts
micro-batches in flight. `zero` has what ranks own under ZeRO, with offload, and `zero_frames` what they borrow, frame
by frame. `mesh` has every rank of a mesh, `mesh_peaks` its highest peak at once, `mesh_torch` a rank of the mesh that
torch's parts make. `fsdp` is the same as `zero` under FSDP over time, by way of `fsdp_tape` and `fsdp_stretch`.
`allocator` is what a GPU holds on top of the tensors, and so what fits.

What torch really allocates is measured in `measure`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    accounts="Account account",
    activations="Sizes block_kept norm_kept",
    allocator="band effects fits usable verdict",
    fsdp="fsdp_account",
    loss="stage_kept",
    pipeline="ends_in_flight most_held",
    states="state_bytes tensor_sizes",
    tape="KINDS",
)
