"""Memory of one rank through a training step, in bytes, by kind and by moment. Pure; stands on `spec`.

Start with `job`: the memory of each rank of a job. `accounts` has the account of a step and its peak. `states` has
weights, gradients and optimizer states, `optimizers` what optimizers store and allocate, `activations` the tensors
that each operation saves; `forward` and `backward` follow one block allocation by allocation onto a `tape`, `loss`
the end of a model, `walk` the whole step; `megatron` has what Megatron-LM keeps otherwise. `recompute` has the tiles
of a block, the cost of recomputing each, and policies that drop some; `recompute_walk` walks a step under a policy.
For Hugging Face's modules, `graph` is autograd without contents, `operations`, `adapters`, `attention`, `experts`,
`blocks` and `transformers` have the modules in its operations, `liger` and `lit_gpt` those of others, and `traces`
plays what a few layers allocate for all. `pipeline` counts micro-batches in flight. `zero` has the states of ranks
under ZeRO, with offload, and `zero_frames` the gathered tensors, frame by frame. `mesh` has every rank of a mesh,
`mesh_peaks` its highest peak, `mesh_torch` a rank of a mesh that torch's libraries make. `fsdp` has memory over time
under FSDP, built on `fsdp_tape`, `fsdp_blocks` and `fsdp_stretch`. `allocator` has the memory of a GPU beyond tensors,
and so says what fits.

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
