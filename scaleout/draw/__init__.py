"""Pictures as SVG, drawn into strings. Pure; stands on the rooms of formulas.

`svg` has the marks, `scale` an axis of bytes, `labels` words cut to their room and keys, `hatch` what waits or is over
a limit, `guess` the mark of a reader's; `plot` axes and curves, `tiles` side by side, whose areas are a curve's height,
`field` points that are too many to be buttons, `spots` labels among them; `errors` predictions beside what was
measured; `ruler` octaves with the strip of a number format, `format_strips` five of them under each other,
`format_bits` one number in two; `lanes` a step of DDP, `steps` several under one another, `batches` what GPUs get of
one, `saves` a checkpoint that a power cut meets; `fsdp_units` a step of FSDP unit by unit, `fsdp_life` one unit's life
on a few ranks, `fsdp_hill` what a GPU holds meanwhile, `fsdp_names` the names of its parts, `fsdp_wraps` three
wrappings; `pipeline_lanes` a pipeline's schedule by rank, `pipeline_held` what each holds meanwhile, `stages` a few
small steps of one; `rank_circle` a collective step by step, whose `parcels` move, with `ramp` for the colours of ranks;
`kinds` the colours of kinds of bytes, for `tank`, what a GPU holds, drawn by `tank_picture`, `tanks`, what each GPU of
a row holds, `moments`, what one does at each moment of some steps, `stacks`, rows of bytes by kind, and `dealt`, bytes
dealt out over GPUs; `squares` what ranks hold of a message, for the `patterns` of collectives and for `nodes` that
reduce in three phases; `busy` when their cards are; `cuts` a product and QKV on a few ranks, `sheets` what ranks hold
of a tensor, on the `ribbon` of a block; `ownership` which rank holds which shard of what; `zero_stages` that at ZeRO's
stages, and when each of them sends; `recompute_hills` what blocks hold through a step, and what it costs to hold less;
`mesh_cuts` what GPUs of a mesh have, how far each of its axes reaches, and what one sends when; `mesh_nodes` ranks on
their nodes, and many nodes as cells.

What a widget shows with them is in `views`. Figures of measurements are matplotlib's: `measure.figures`.
"""
