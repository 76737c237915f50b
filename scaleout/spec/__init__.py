"""Descriptions of a training run: the model, the recipe, the layout, the devices, the links. All else starts from it.

`job` is a whole training run: the model, the recipe, the cluster, and the `program` that runs it; `job_checks` says
which jobs are possible. The other modules are its parts. `transformer` has the shape of a model, its parameters and
operations, and `variant` in what its blocks differ from GPT's and Llama's. `config` reads a config.json, by
`families`, and `hugging_face` the one that a page has; `models` has open models. `recipe` is how the model is
trained, as far as memory and kernels are concerned. `layout` (`layout_words` for its text form), `sharding` and
`slices` (the matrices of a block) say how ranks divide the model, `blocks` which kinds of layers it has, with their
matrices, `adapters` the low-rank matrices beside them, `replicas` how replicas exchange gradients and weights, `mesh`
where the ranks are, which groups they form and over which links, and `pipeline` in which orders the ranks of a
pipeline work (`pipeline_weave` interleaves them). `devices` has GPUs and `hardware` links from datasheets,
`protocols` NCCL's own constants, `sweeps` published measurements, each figure with its source; `topology` connects
ranks to a cluster.
`checks` has the refusals of all modules, `command` their command line, `muon` the states and operations of Muon.

`launchers` writes a layout as options of the book's job, of torchtitan and of Megatron-LM; `frameworks` says which of
them, or Accelerate, runs the jobs of a program, and what it cannot run.

Formulas of bytes and times are in `memory`, `collectives` and `timing`; the order of the data and the learning rates
are in `train`. Imports the standard library only.
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
