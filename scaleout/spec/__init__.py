"""What is trained, how, on what, and over which wires: the facts that every other room starts from.

`job` is a whole training run: what is trained, how, on what and by which `program`; `job_checks` says which there are;
the other modules are its parts.
`transformer` has the shape of a model, its parameters and operations, and `hugging_face` reads it from a config.json;
`recipe` is how it is trained, as far as memory and kernels go; `layout` (`layout_words`: as it is typed), `sharding`
and `slices` (a block's matrices) how ranks divide it, `replicas` how they exchange what they have in common; `mesh`
where they stand, who is in whose group, and over which wires; `pipeline` the orders in which ranks of a pipeline work,
woven in `pipeline_weave`. `devices` has GPUs and `hardware` links by their datasheets, `protocols` NCCL's own
constants, `sweeps` what others measured, each figure with its source; `topology` joins ranks to a cluster. `checks` has
the refusals of all, `command` their command line; `muon` what that optimizer takes and computes.

`launchers` says a layout in the options of the book's job, of torchtitan and of Megatron-LM; `frameworks` says which of
them, or Accelerate, runs a program's jobs, and what it cannot run.

No formula of bytes or seconds lives here (`memory`, `collectives`, `timing`), and nothing of one training run: the
order of its data and its learning rates are in `train`. Imports the standard library only.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    transformer="PRESETS Shape flops linears preset total_parameters",
    recipe="CHOICES Recipe",
    job="Job",
    program="MEASURED PROGRAMS",
    replicas="Replicas",
    layout="Layout",
    sharding="WRAPS Sharding units",
    devices="DEVICES",
    hardware="COMPUTE_SHARE LINKS",
    protocols="HOPS PROTOCOLS RING_SHARE",
    topology="Wire cluster",
)
