"""Exercises of `architecture` on what disturbs steps: collections that are staggered, a save in the background, a cause
that was withdrawn."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip

PROCESSES, APART, PAUSE, QUIET = 176, 220, 1.5, 16.7  # steps from one collection of a process to its next; seconds
HIT = 1 - (1 - 1 / APART) ** PROCESSES
STAGGERED = Number(
    key="staggered",
    level=2,
    minutes=4,
    title="Everybody pauses rarely",
    prompt=f"**{PROCESSES} processes** train together, and each step takes {QUIET} s. Garbage collection stops "
    f"each process for {PAUSE} s once in **{APART} steps**, each at a time of its own, independently of the others. "
    "What share of the steps contains at least one pause?",
    hints=(
        "What is the probability that one process does not pause in a certain step?",
        "And that none of them does? A step is slow if that does not happen.",
    ),
    solution=f"One process does not pause with probability 1 − 1/{APART} = {1 - 1 / APART:.4f}, and all {PROCESSES} do "
    f"not pause with {1 - 1 / APART:.4f}^{PROCESSES} = {1 - HIT:.3f}. So **{HIT:.1%}** of the steps are {PAUSE} s "
    f"longer, and the mean step grows by {HIT * PAUSE:.2f} s, or {HIT * PAUSE / QUIET:.1%}. If all collect in "
    f"the same step, once in {APART} steps, the mean grows by {1000 * PAUSE / APART:.0f} ms. That is why large jobs "
    "switch automatic collections off, and collect on all ranks together.",
    value=HIT,
    unit="%",
    units=("%",),
    dimension="share",
    slips=(
        Slip("sum", PROCESSES / APART, "You added the probabilities. Two pauses can fall into one step."),
        Slip("quiet", 1 - HIT, "That is the share of steps without any pause."),
        Slip("one-process", 1 / APART, "That is the share of steps in which one certain process pauses."),
        Slip("slower", PAUSE / QUIET, "That is how much longer a step with a pause is."),
        Slip("mean", HIT * PAUSE / QUIET, "That is by how much the mean step grows. The question is how many steps."),
    ),
    right="A pause that is rare on each rank is frequent in the job, because every step waits for its last rank.",
)

STOP, STEPS, USUAL, SAVING = 1.2, 4, 16.9, 20.6  # seconds; steps that a save lasts
COST = STOP + STEPS * (SAVING - USUAL)
BACKGROUND = Number(
    key="background-save",
    level=1,
    minutes=3,
    title="A second, says the log",
    prompt=f"A job saves asynchronously. The log says that a checkpoint **blocks training for {STOP} s**, in which the "
    f"states are copied to the CPU's memory. They are then written in the background, which lasts for "
    f"**{STEPS} steps**. These steps take **{SAVING} s** each; all others take {USUAL} s. What does one checkpoint "
    "really cost the training?",
    hints=("By how much is each of these steps longer?", "Which of the two costs does the log know?"),
    solution=f"{STEPS} steps are {SAVING - USUAL:.1f} s longer each, so the checkpoint costs {STOP} s + {STEPS} × "
    f"{SAVING - USUAL:.1f} s = **{COST:.1f} s**. The writer shares the CPU, its memory, PCIe and the network with the "
    "training. Measure a save by the steps around it, not by the time that the call takes. The step times are those of "
    "a run on 704 GPUs (marin-community/marin, issue 9205).",
    value=COST,
    unit="s",
    units=("s",),
    dimension="seconds",
    slips=(
        Slip("log", STOP, "That is what the log says. The steps meanwhile are slower, too."),
        Slip("no-stop", COST - STOP, "Training also stops while the states are copied."),
        Slip("one-step", STOP + SAVING - USUAL, "That is one of the slow steps. There are several."),
        Slip("whole-steps", STOP + STEPS * SAVING, "You counted whole steps. These steps train as well."),
        Slip("two-parts", SAVING - USUAL, "That is by how much one step is longer."),
    ),
    right="What a save costs is seen in the steps after it.",
)

WITHDRAWN = Choice(
    key="withdrawn",
    level=2,
    minutes=3,
    title="The cause that was not",
    prompt="Runs fail on a cluster. An engineer notes: *peak memory is 140.2 GiB, above the limit of 138.2 GiB, so "
    "memory runs out*. The same log line stands in runs that **finished**. What follows?",
    hints=("What would have to hold for the runs that finished?", "Can a run allocate more than there is?"),
    solution="**The line cannot be the cause.** A peak above the limit in a run that finished means that the gauge "
    "counts something else than the limit does, such as memory that was reserved and never touched, or a sum of peaks "
    "at different moments. So it says nothing about the runs that failed either. This is the story of "
    "marin-community/marin, issue 7344: after instrumenting the allocation, its author withdrew the diagnosis. Before "
    "you believe a cause, look for it in the runs that are healthy.",
    options=(
        Option(
            "gauge",
            "The line proves nothing: healthy runs have it too",
            "Right. A cause must be absent where the effect is absent, or something else is needed as well.",
            True,
        ),
        Option(
            "luck",
            "The runs that finished were lucky with fragments",
            "No luck lets a run use more memory than there is. What does the gauge count?",
        ),
        Option(
            "limit",
            "The limit is set too low and should be raised",
            "By what? First find out why the gauge shows more than the limit in runs that work.",
        ),
        Option(
            "batch",
            "A smaller batch would make the failing runs work",
            "Perhaps, but nothing here shows that memory is what fails them.",
        ),
    ),
)

EXERCISES = (STAGGERED, BACKGROUND, WITHDRAWN)
