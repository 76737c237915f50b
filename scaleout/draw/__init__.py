"""Pictures as SVG, drawn into strings. Pure; stands on the rooms of formulas.

`svg` has the marks, `room` blocks that know the room they take, and their arrangement in columns, rows and panels,
`scale` an axis of bytes, `labels` texts cut to their space, and keys, `hatch` the hatching of waiting time and of what
is above a limit, `guess` the mark of a reader's guess. `plot` has axes and curves, `tiles` rectangles whose areas are a
curve's height, `field` points that are too many to be buttons, `spots` labels among them, `errors` predictions next to
measurements, `ruler` octaves with the strip of a number format, `format_strips` five of them below each other,
`format_bits` one number in two formats.
`lanes` is a step of DDP, `steps` several below one another, `batches` the batch of each GPU, `saves` a checkpoint at
which the power fails. `fsdp_units` is a step of FSDP unit by unit, `fsdp_life` one unit on a few ranks, `fsdp_hill` the
memory of a GPU meanwhile, `fsdp_names` the names of its parts, `fsdp_wraps` three wrappings. `pipeline_lanes` is a
pipeline's schedule by rank, `pipeline_held` the memory of each rank meanwhile, `stages` a few small steps of one.
`rank_circle` is a collective step by step, whose `parcels` move, with `ramp` for the colours of ranks; `squares` is the
data of ranks, for the `patterns` of collectives and for `nodes` that reduce in three phases; `busy` shows when their
network adapters work. `parts` has the names and colours of what bars of memory and of step time consist of. `kinds` has
those of each kind of memory, for `tank`, the memory of a GPU, drawn by `tank_picture`, for `tanks`, a row of GPUs,
`moments`, one GPU at each moment of some steps, `stacks`, rows of bytes by kind, and `dealt`, bytes distributed over
GPUs. `cuts` is a matrix multiplication and QKV on a few ranks, `sheets` the parts of a tensor on ranks, on the `ribbon`
of a block; `ownership` shows which rank stores which shard, `zero_stages` the same at ZeRO's stages, and when each of
them communicates; `recompute_hills` is the memory of blocks through a step, and the cost of less memory; `mesh_cuts`
shows the parts of a model on the GPUs of a mesh, how far each axis reaches, and when each communicates; `mesh_nodes` is
ranks on their nodes, and many nodes as cells.
`attention_tiles` has the scores of attention as tiles, all in memory or one at a time on the chip.

Widgets that use them are in `views`. Figures of measurements are made with matplotlib: `measure.figures`.
"""
