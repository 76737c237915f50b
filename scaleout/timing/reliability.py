"""Failures and checkpoints: how often a cluster fails, how often to save, and how much time is left for training.

Failures come at random with a constant rate (exponential times between them). delta is the time that a checkpoint
takes from the training, M the mean time between failures, R the time from a failure until the job works again, tau
the work between two checkpoints. All in seconds.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974;
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
"""

import math

NEVER = math.inf


def cluster_mtbf(ranks, device_mtbf_seconds, ranks_per_node=8, node_mtbf_seconds=NEVER):
    """Mean seconds between failures of a job that any device or node can stop: rates of failure add.

    device_mtbf_seconds: of one device alone; node_mtbf_seconds: of what the devices of one node share.
    """
    _positive(
        ranks=ranks,
        device_mtbf_seconds=device_mtbf_seconds,
        ranks_per_node=ranks_per_node,
        node_mtbf_seconds=node_mtbf_seconds,
    )
    rate = ranks / device_mtbf_seconds + math.ceil(ranks / ranks_per_node) / node_mtbf_seconds
    return 1 / rate if rate else NEVER


def young(checkpoint_seconds, mtbf_seconds):
    """Work between two checkpoints by Young's first order, sqrt(2 delta M), in seconds. Good where delta << M."""
    _positive(checkpoint_seconds=checkpoint_seconds, mtbf_seconds=mtbf_seconds)
    return math.sqrt(2 * checkpoint_seconds * mtbf_seconds)


def expected_seconds(work_seconds, interval_seconds, checkpoint_seconds, mtbf_seconds, restart_seconds=0.0):
    """Wall clock that `work_seconds` of training take on average: (work/tau) M exp(R/M) (exp((tau + delta)/M) - 1).

    A failure loses what was done since the last checkpoint, and may strike again while the job restarts (Daly 2006,
    without his approximations). Infinity where so little gets done that the number has no room in a float.
    """
    _positive(interval_seconds=interval_seconds, mtbf_seconds=mtbf_seconds)
    if min(work_seconds, checkpoint_seconds, restart_seconds) < 0:
        raise ValueError("seconds of work, checkpoint and restart must not be negative")
    if mtbf_seconds == NEVER:
        return work_seconds * (1 + checkpoint_seconds / interval_seconds)
    try:
        segment = math.expm1((interval_seconds + checkpoint_seconds) / mtbf_seconds)
        return work_seconds / interval_seconds * mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * segment
    except OverflowError:
        return math.inf


def overhead(interval_seconds, checkpoint_seconds, mtbf_seconds, restart_seconds=0.0):
    """Wall clock beyond the work, as a fraction of the work: what failures and checkpoints cost together."""
    return expected_seconds(1.0, interval_seconds, checkpoint_seconds, mtbf_seconds, restart_seconds) - 1


def effective_time(mtbf_seconds, interval_seconds, checkpoint_seconds, restart_seconds):
    """Shares of the wall clock, which sum to 1: "work" that is kept, "saves", "lost" work, and "restarts".

    "work" is the effective training time ratio. Failures come at the rate 1/M at any moment, and a restart ends after R
    or with the next failure, so a share of 1 - exp(-R/M) is restarts; work and saves follow from `expected_seconds`.
    """
    work = 1 / expected_seconds(1.0, interval_seconds, checkpoint_seconds, mtbf_seconds, restart_seconds)
    saves, restarts = work * checkpoint_seconds / interval_seconds, -math.expm1(-restart_seconds / mtbf_seconds)
    return {"work": work, "saves": saves, "lost": max(0.0, 1 - work - saves - restarts), "restarts": restarts}


def effective_ratio(nodes, failures_per_node_day, interval_days, checkpoint_days, restart_days):
    """The effective training time ratio to first order, (1 - N r (u + dt/2)) / (1 + w/dt), times in days: Kokolis et
    al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters (HPCA 2025), without the queue."""
    lost = nodes * failures_per_node_day * (restart_days + interval_days / 2)
    return (1 - lost) / (1 + checkpoint_days / interval_days)


def _positive(**values):
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}: it must be above 0")
