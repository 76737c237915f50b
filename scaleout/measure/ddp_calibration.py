"""Measurements from which a run predicts its own steps, made in the rounds in which the steps are timed.

A machine that others use too, or that clocks down, is not the machine it was a minute ago; measured in the same
rounds, the calibration has the same luck as the steps. Nothing here times per step that is predicted.
"""

import statistics

import torch
import torch.distributed as dist

from scaleout.parallel import ddp as parallel_ddp
from scaleout.parallel.step import seconds_between, stamp
from scaleout.timing import ddp as timing_ddp
from scaleout.timing import profile

REPEATS = 4  # all-reduces a measurement: the first one also waits for the ranks to come
SLOWEST = 0.02  # of its speed alone: what an all-reduce beside compute is taken to keep at least


def middle(values, warmup=0):
    """The median of what was measured after the warm-up."""
    return statistics.median(values[warmup:])


class Calibration:
    """Seconds of all-reduce, of compute by gradient, and of both at once; every round adds one sample of each.

    `reduce`: {bytes: [seconds]}. `silent`: {way: [(forward, by gradient, rest)]}. `beside`: {way: [(backward seconds
    with all-reduces beside it, share of their speed that the all-reduces kept)]}. `update`: [seconds]. The slowest
    rank's figure counts.
    """

    def __init__(self, s, hook, sizes, bucket_bytes):
        """hook: (function, state) that averages a bucket. sizes: bytes of gradients to time; bucket_bytes: of a usual
        bucket, for what runs beside compute."""
        self.s, self.hook, self.usual = s, hook, bucket_bytes
        self.flats = {
            n: parallel_ddp.Bucket(0, [torch.zeros(max(1, n // 4), device=s.device)], True)
            for n in sorted({*sizes, bucket_bytes})
        }
        self.alone = dist.new_subgroups(1)[0] if s.world > 1 else None  # a group of this rank only
        self.reduce, self.silent, self.beside, self.update = {n: [] for n in self.flats}, {}, {}, []

    def all_reduce(self):
        """One sample of each size."""
        hook, state = self.hook
        for n, bucket in self.flats.items():
            hook(state, bucket).wait()
            start = self.s.clock()
            for _ in range(REPEATS):
                hook(state, bucket).wait()
            self.reduce[n].append(self.s.largest(self.s.clock() - start) / REPEATS)

    def compute(self, way, batch, update=False):
        """One sample of forward and backward, nothing sent, all ranks at work; with `update`, of the update too."""
        way.replicas.look.alone = self.alone
        self.s.barrier()
        forward, ready, rest_seconds = way.silent(batch, keep=update)
        if update:
            start = self.s.clock()
            way.training.step()
            way.training.clear()
            self.update.append(self.s.largest(self.s.clock() - start))
        total = sum(spent for _, _, spent in ready)
        slowest = self.s.largest(total) / total
        self.silent.setdefault(way.via, []).append(
            (
                self.s.largest(forward),
                [(name, size, spent * slowest) for name, size, spent in ready],
                self.s.largest(rest_seconds),
            )
        )

    def overlapped(self, way, batch):
        """One sample of a backward with all-reduces of the usual bucket beside it, more than it can outlast."""
        hook, state = self.hook
        alone = middle(self.reduce[self.usual])
        backward = middle([sum(spent for _, _, spent in ready) for _, ready, _ in self.silent[way.via]])
        count = max(2, min(200, int(2 * backward / alone)))
        way.replicas.look.silent, ends = True, []
        loss = way.training.loss(*batch, way.replicas)
        self.s.barrier()
        futures = [hook(state, self.flats[self.usual]).then(lambda _: ends.append(stamp(self.s))) for _ in range(count)]
        start = stamp(self.s)
        way.replicas.backward(loss)
        end = stamp(self.s)
        for future in futures:
            future.wait()
        self.s.synchronize()
        way.replicas.look.silent = False
        way.training.clear()
        spent = seconds_between(start, end)
        overlapped = sum(seconds_between(instant, end) > 0 for instant in ends) * alone / spent
        self.beside.setdefault(way.via, []).append((self.s.largest(spent), self.s.mean(overlapped)))

    # --- what follows from it -----------------------------------------------------------------------------

    def line(self, warmup):
        """timing.profile.fit of the all-reduce: alpha and beta, with residuals."""
        return profile.fit([(n, middle(spent, warmup)) for n, spent in self.reduce.items()])

    def layers(self, via, warmup):
        """([timing.ddp.Layer], one a gradient, in the order of the forward; seconds after the last gradient)."""
        samples = self.silent[via][warmup:]
        ready = samples[0][1]
        spent = [statistics.median(sample[1][i][2] for sample in samples) for i in range(len(ready))]
        scale = statistics.median(sum(t for _, _, t in sample[1]) for sample in samples) / sum(spent)
        forward = statistics.median(sample[0] for sample in samples) / len(ready)
        layers = [
            timing_ddp.Layer(name, forward, t * scale, size) for (name, size, _), t in zip(ready, spent, strict=True)
        ]
        return layers[::-1], statistics.median(sample[2] for sample in samples)

    def sharing(self, via, warmup):
        """(share of its speed that compute loses beside an all-reduce, share that the all-reduce keeps)."""
        layers, rest_seconds = self.layers(via, warmup)
        samples = self.beside[via][warmup:]
        alone = sum(layer.backward_seconds for layer in layers) + rest_seconds
        lost = 1 - alone / statistics.median(spent for spent, _ in samples)
        return min(0.95, max(0.0, lost)), min(1.0, max(SLOWEST, statistics.mean(speed for _, speed in samples)))

    def predict(self, via, caps, warmup, accumulation=1, sync_every_pass=False, send=True):
        """(step time in seconds, exposed seconds, buckets) by timing.ddp.ddp_step; with send=False, of compute alone.

        Beside compute a message keeps only a share of its speed; what is left when the backward ends has all of it
        again, which ddp_step does not know, so that its exposed part is shortened here.
        """
        layers, rest_seconds = self.layers(via, warmup)
        line, update = self.line(warmup) if send else {}, middle(self.update, warmup)
        overlap = via != "hand"
        lost, speed = self.sharing(via, warmup) if overlap else (0.0, 1.0)
        cap, first = caps if overlap else (1, 1)  # naive: one all-reduce a tensor
        step = timing_ddp.ddp_step(
            layers,
            lambda n: profile.line_seconds(line, n) / speed if send else 0.0,
            cap_bytes=cap,
            first_cap_bytes=first,
            overlap=overlap,
            accumulation=accumulation,
            sync_every_pass=sync_every_pass,
            update_seconds=update + rest_seconds,
            contention=lost,
        )
        exposed = step.exposed_seconds * speed
        return step.seconds - step.exposed_seconds + exposed, exposed, len(step.buckets)

    def words(self, warmup):
        """What was measured, in words, for a Record's notes."""
        line = self.line(warmup)
        lines = [
            f"all_reduce: alpha {line['alpha_seconds'] * 1e3:.3f} ms, 1/beta "
            f"{1e-6 / max(line['seconds_per_byte'], 1e-15):,.0f} MB/s, worst residual "
            f"{line['worst_relative_error']:.0%} over {len(line['points'])} sizes"
        ]
        for via in self.beside:
            lost, speed = self.sharing(via, warmup)
            lines.append(
                f"{via}: beside an all-reduce of {self.usual:,} bytes compute loses {lost:.0%} of its speed, "
                f"and the all-reduce keeps {speed:.0%}"
            )
        return lines
