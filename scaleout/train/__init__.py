"""The training job of the last rung, and the lab of scaling that starts it many times.

`options` are its sizes and what is refused before any work. `order` and `rates` say which text and which learning rate
each step has: they are here and not in `spec`, for only this job reads them. `batches` cuts batches, `trainer` makes
steps, `metrics` keeps what they gave, `finite` ends a run whose numbers are none, `watch` sees who stops or hangs.
`cadence`, `checkpoint`, `dcp`, `state` and `folder` keep a run and take it up again; `attempts` and `spans` remember
restarts and changed options; `faults` strikes on request. `forecast` predicts, `report` prints and draws, `job` writes
the Record. `mesh_trainer` and `mesh_forecast` are trainer and forecast by a layout of several axes. `worlds` and
`curves` are the lab of scaling.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    cadence="Cadence",
    checkpoint="together",
    finite="check_loss check_norm",
    job="close",
    metrics="Metrics",
    options="TIERS WARMUP",
    order="Order",
    rates="Rates planned_steps",
    report="Progress",
    watch="CHECKPOINT Watch remember_collectives",
)
