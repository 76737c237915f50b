"""Data-parallel training by hand, by DistributedDataParallel and by Accelerate, behind one surface, with the marks that
a prediction is made from."""

from contextlib import nullcontext

import torch
from torch.profiler import record_function as phase

from scaleout.parallel.recipe import Training
from scaleout.parallel.replicas import Replicas, Settings
from scaleout.parallel.step import Way, seconds_between, stamp
from scaleout.spec.recipe import Recipe


class Marks:
    """When each gradient of a model got ready, by a hook on every parameter. Idle until `start`."""

    def __init__(self, s, model):
        self.s, self.at, self.on = s, [], False
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: self._ready(name, p))

    def _ready(self, name, p):
        if self.on:
            self.at.append((name, p.numel() * p.element_size(), stamp(self.s)))

    def start(self):
        """Forget, and note from now on."""
        self.at, self.on = [], True

    def stop(self):
        """[(name, bytes, stamp)] in the order of getting ready."""
        self.on = False
        return self.at


class DDPWay(Way):
    """Replicas of a model, by one of replicas.WAYS, and marks that a prediction is made from."""

    def __init__(self, s, shape, via="torch", settings=None, recipe=None, rate=1e-3, seed=0, unused=False):
        """settings: a parallel.replicas.Settings. recipe: fp32 without one. unused: the model gets a linear layer that
        no forward uses."""
        self.s, self.via = s, via
        torch.manual_seed(seed)
        self.training = Training(shape, recipe or Recipe(precision="fp32"), s.device, rate)
        if unused:
            self.training.model.spare = torch.nn.Linear(shape.hidden, shape.hidden, device=s.device)
            self.training.optimizer.add_param_group({"params": list(self.training.model.spare.parameters())})
            self.training.trained += self.training.model.spare.parameters()
        self.marks = Marks(s, self.training.model)
        self.replicas = Replicas(s, self.training.model, via, settings=settings or Settings())
        if self.replicas.accelerator is not None:
            self.training.optimizer = self.replicas.accelerator.prepare(self.training.optimizer)

    @property
    def model(self):
        """The model itself, without what is wrapped around it."""
        return self.training.model

    def gradients(self, batches, sync_every_pass=False):
        """Forward and backward of one batch, or of several that accumulate the gradient of their mean; the mean loss.

        batches: [(tokens, targets)]. Between ranks the gradients are averaged once, in the last pass, or in every
        pass. Returns a float.
        """
        total = 0.0
        for i, batch in enumerate(batches):
            last = sync_every_pass or i == len(batches) - 1
            with nullcontext() if last else self.replicas.no_sync():
                with phase("forward"):
                    loss = self.training.loss(*batch, self.replicas) / len(batches)
                self.replicas.backward(loss, last)
            total += loss.detach()
        return total.item()

    def make_update(self):
        """The update of the recipe: with master weights it is of these."""
        self.training.step()
        self.training.clear()

    @property
    def built(self):
        """What was built, in words."""
        return self.replicas.built

    def silent(self, batch, keep=False):
        """Forward and backward of one batch with nothing sent: (forward seconds, [(name, bytes, seconds)] by gradient
        in the order of getting ready, seconds after the last one). `keep`: the gradients stay."""
        self.replicas.look.silent = True
        start = stamp(self.s)
        loss = self.training.loss(*batch, self.replicas)
        middle = stamp(self.s)
        self.marks.start()
        self.replicas.backward(loss)
        end, ready = stamp(self.s), self.marks.stop()
        self.s.synchronize()
        self.replicas.look.silent = False
        if not keep:
            self.training.clear()
        points = [middle, *(instant for _, _, instant in ready)]
        spent = [
            (name, size, seconds_between(previous, instant))
            for (name, size, instant), previous in zip(ready, points[:-1], strict=True)
        ]
        return seconds_between(start, middle), spent, seconds_between(points[-1], end)
