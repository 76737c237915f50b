"""Rung 16: a model writes its own training text on all ranks, trains on it, and is compared with what it was.

python labs/budget.py
torchrun --nproc-per-node 2 labs/budget.py --save
accelerate launch --config_file labs/launch/accelerate.yaml --num_processes 2 labs/budget.py --via accelerate
python labs/budget.py --temperature 1.5 --top-p 0.7 --seeds 2
"""

import scaleout.lab.start  # isort: skip # noqa: F401 (first: Ctrl-C while torch is imported is one line)

from dataclasses import dataclass
from statistics import fmean

from scaleout.lab import budget as lab_budget
from scaleout.lab import corpus, options, runner, session
from scaleout.measure import budget
from scaleout.parallel import ROUTES, parity
from scaleout.spec import flops
from scaleout.timing import budget as timing_budget

SAMPLES = (4, 16, 64)  # k of pass@k
OTHER = corpus.DATA / "LICENSE"  # English prose that comes with the book: no kind of text that the model trains on


@dataclass(frozen=True)
class Options(options.Model):
    """The model, its training, what it writes, and how it trains on that."""

    layers: int = options.number(2, "blocks")
    hidden: int = options.number(64, "width of the residual stream")
    heads: int = options.number(4, "attention heads")
    seq: int = options.number(64, "tokens per sequence", 16)
    form: str = options.choice(
        "llama", ("gpt", "llama"), "which model: with layer norms, biases and a tied head, or not"
    )
    batch: int = options.number(8, "sequences per step, of all ranks")
    steps: int = options.number(700, "training steps of the base model", 2)
    lr: float = options.number(3e-3, "learning rate of the base model", 0, 1000)
    prompt: int = options.number(16, "bytes of real text that a written sequence begins with")
    written: int = options.number(96, "sequences that the base writes, of all ranks")
    temperature: float = options.number(0.9, "at which it writes them", 0.05, 10)
    top_p: float = options.number(0.85, "of the truncation while it writes", 0.01, 1)
    tune_steps: int = options.number(24, "training steps on the written text")
    tune_lr: float = options.number(5e-4, "learning rate of these steps", 0, 1000)
    seeds: int = options.number(3, "times that it writes and trains, each with other random numbers", 2, 100)
    windows: int = options.number(24, "held-out sequences that models are compared on", 2, 10**5)
    seed: int = options.seed()
    via: str = options.choice("torch", ROUTES, "what averages the gradients of the ranks")
    dataset: str | None = options.dataset()
    save: str | None = options.save("budget")


TIERS = {
    "smoke": Options(),
    "cpu": Options(layers=4, hidden=128, seq=128, steps=1000, written=256, tune_steps=100, windows=64),
    "gpu": Options(
        layers=12,
        hidden=768,
        heads=12,
        seq=512,
        batch=64,
        steps=4000,
        lr=6e-4,
        prompt=64,
        written=2048,
        tune_steps=200,
        tune_lr=1e-5,
        windows=128,
        dataset=corpus.LARGE,
    ),
}


def refuse(lab):
    """ValueError, in one line, for what could not work."""
    o, world = lab.o, lab.s.world
    lab.refuse()
    if o.prompt >= o.seq:
        raise ValueError(f"--prompt {o.prompt}: a sequence of {o.seq} bytes has to have some that are written")
    for flag, sequences in (("--batch", o.batch), ("--written", o.written)):
        if sequences % world:
            raise ValueError(f"{flag} {sequences}: does not divide among {world} processes: use {world * 8}")
    if o.written < o.batch:
        raise ValueError(f"--written {o.written}: a step takes {o.batch} sequences: write as many, or use --batch")


def equality(lab, study):
    """Check the gradients of all ranks against this process alone on the whole batch."""

    def trained(via):
        alone = via == "one"
        replicas = study.model()
        loss, grads = parity.loss_and_gradients(replicas.model, *study.batch(0, alone), None if alone else replicas)
        return {"loss": [loss], "gradients": grads}

    lab.equality(trained, (lab.o.via,), {lab.o.via: f"replicas by {lab.o.via}"})


def count(lab, study):
    """FLOPs of training and of writing, predicted and counted by torch."""
    o = lab.o
    step, counted = flops(o.shape, study.each, o.seq), study.counted()
    writing = sum(flops(o.shape, 1, n)["forward"] for n in range(o.prompt, o.seq + 1))
    for name, predicted in zip(counted, (step["forward"] + step["backward"], writing), strict=True):
        lab.predict(name, predicted, counted[name])
        lab.check_prediction(f"{name} as predicted", predicted, counted[name])


def figures(seen):
    """{figure: number} of what held-out text shows."""
    (best_at, right), (among_at, among) = (seen.best(k) for k in budget.SAMPLES)
    scores = {name: getattr(seen, name) for name in ("loss", "other_loss", "sure", "open", "tail")}
    return scores | {"right": right, "at": best_at, "among": among, "among_at": among_at}


def arms(lab, study, base):
    """({arm: {figure: by seed}}, seconds of writing, seconds of training): three models for each seed."""
    o, written_seconds, trained_seconds = lab.o, [], []
    rows_by_arm = {arm: [] for arm in lab_budget.ARMS}
    for seed in range(o.seeds):
        own_text, seconds = study.written(base, seed, o.temperature, o.top_p)
        raw_text, _ = study.written(base, seed, 1.0, 1.0)
        written_seconds.append(seconds)
        for arm, rows in (
            (lab_budget.OWN, own_text),
            (lab_budget.RAW, raw_text),
            (lab_budget.REAL, study.prompts(seed)),
        ):
            model, seconds = study.trained(base, rows, seed)
            trained_seconds.append(seconds)
            rows_by_arm[arm].append(figures(study.seen(model, base)[0]))
    by_figure = {arm: {name: [row[name] for row in rows] for name in rows[0]} for arm, rows in rows_by_arm.items()}
    return by_figure, fmean(written_seconds), fmean(trained_seconds)


def predicted_passes(lab, accuracies):
    """Rows (k, predicted, measured): pass@k from a Beta with the mean and variance of the accuracies, and from each."""
    rows, beta = [], timing_budget.beta_fit(accuracies)
    for k in SAMPLES:
        rows.append((k, timing_budget.pass_at(k, *beta), fmean(1 - (1 - p) ** k for p in accuracies)))
        lab.predict(f"pass@{k} of the base", *rows[-1][1:])
    return rows


def study_all(lab):
    """Train the base, let it write, train on that, compare, record. Exit code 1 where a check failed."""
    s, o = lab.s, lab.o
    study = budget.Study(s, o, lab.text, session.dataset(str(OTHER), o.seq))
    if s.world > 1:
        equality(lab, study)
    count(lab, study)
    base, seconds, losses = study.base()
    seen, accuracies = study.seen(base, base)
    base_figures = figures(seen)
    by_arm, writing, training = arms(lab, study, base)
    lab.check("ranks have the same weights after training", base.spread(), 1e-6)
    rows = predicted_passes(lab, accuracies)
    lab.series |= {f"{name}, base": [value] for name, value in base_figures.items()}
    lab.series |= {
        f"{name}, {arm}": values
        for arm, values_by_figure in by_arm.items()
        for name, values in values_by_figure.items()
    }
    lab.series |= {"seconds to write": [writing], "seconds to train on it": [training]}
    lab.skip(
        "a cache of keys and values: each byte is written by a forward pass over all bytes before it",
        s.world == 1 and "equal gradients on ranks: one process has nothing to average (torchrun --nproc-per-node 2)",
    )
    s.say("\n" + lab_budget.models(base_figures, by_arm))
    s.say("\n" + "\n".join(lab_budget.verdicts(base_figures, by_arm)))
    s.say("\n" + lab_budget.passes(rows) + "\n\n" + lab_budget.costs(writing, training, o.written, o.tune_steps) + "\n")
    recipe = {name: getattr(o, name) for name in ("written", "prompt", "temperature", "top_p", "tune_steps", "tune_lr")}
    lab.report(lab.record(seconds, losses, recipe | {"seeds": o.seeds}, o.batch), way=o.via)
    lab.end()


def main(s, argv=None):
    """The base model, and three that are trained from it."""
    lab = runner.Lab(s, __file__, __doc__, TIERS, argv)
    refuse(lab)
    lab.begin(f"{lab.o.steps} steps of {lab.o.batch} x {lab.o.seq} tokens, then {lab.o.written} sequences of its own")
    study_all(lab)


if __name__ == "__main__":
    session.run(main)
