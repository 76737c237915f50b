"""Exercises of `pipeline` on messages that hold ranks up: two that both send, and a receive in the way."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

# What `torchrun --nproc-per-node 4 labs/pipeline.py --fault both-send` says of its ranks, a line each.
STANDING = """\
rank 0 waits to send activations 3 to rank 1
rank 1 waits to send activations 2 to rank 2
rank 2 waits to send activations 1 to rank 3
rank 3 waits to send gradient 0 to rank 2
"""

BOTH_SEND = Choice(
    key="both-send",
    level=2,
    title="Two that both send",
    minutes=4,
    prompt="1F1B on four ranks stands still. A send here lasts until its receiver takes the message, and every rank "
    "begins a receive only when it needs what it brings. Each was asked for its last operation:\n\n"
    f"```\n{STANDING}```\n\nAll four stand in a send. What has to be different, so that they go on?",
    hints=(
        "For each rank: when will the one that it sends to receive next?",
        "Follow the waiting from rank 0 down. Where does it turn back?",
    ),
    solution="Rank 0 waits for rank 1, that for rank 2, that for rank 3, and **rank 3 for rank 2**: these two are the "
    "ring, the others wait behind it. Rank 2 would take the gradient next, if rank 3 took its activations first, and "
    "the other way round.\n\n"
    "One of two neighbours has to be ready to receive before its own send is through: by starting the receive with "
    "`irecv` before it waits for the send, by a send that is started and not waited for, or by a rule that even ranks "
    "send first and odd ones receive first. It has to hold on **every** link: mend only this one, and ranks 1 and 2 "
    "meet in the same way a moment later.",
    options=(
        Option(
            "pair",
            "Of neighbours like 2 and 3 one must be ready to receive",
            "Right: ranks 2 and 3 wait for each other, and 0 and 1 behind them. Start the receive before you wait "
            "for the send, on every link.",
            True,
        ),
        Option(
            "first",
            "Rank 0 must not send its activations so far ahead",
            "Rank 0 is as far ahead as 1F1B says: it opens with three forwards and does a fourth. It waits because "
            "rank 1 does.",
        ),
        Option(
            "last",
            "Rank 3 must keep its gradients until the step's end",
            "Then rank 2 would never get the gradient for its first backward, and nobody would go up. The gradient "
            "is what 1F1B needs soonest.",
        ),
        Option(
            "patience",
            "The time-out must be longer: messages are on their way",
            "None of the four is on its way: a send ends when its receiver takes it, and no rank is receiving. They "
            "would stand there for ever.",
        ),
        Option(
            "smaller",
            "Messages must be smaller, to fit the network's buffers",
            "With some libraries a small message is taken into a buffer and the send ends. Then it hangs on the "
            "day when the messages are larger. The order is the fault.",
        ),
    ),
)

# The actions of rank 0 of 2 that torch 2.13 makes of Interleaved1F1B with 4 micro-batches; a test asks it again.
TORCH_ORDER = "0F0 0SEND_F0 2RECV_F0 0F1\n0SEND_F1 2RECV_F1 2F0 2SEND_F0"
# The first slots of the step that this list and rank 1's lead to, three columns a forward, where each action waits for
# its own input alone, and where a receive that has begun holds up what stands behind it. The same test plays it.
LANES = """\
as it should be
rank 0  000111000111222...aaa
rank 1  ...000111000aaaaaa111

as it runs
rank 0  000...111...000111...
rank 1  ...000...111...000aaa
"""
SLOTS = 27, 40  # of the whole step, either way

RECEIVE_FIRST = Choice(
    key="receive-first",
    level=3,
    title="40 in place of 27",
    minutes=6,
    prompt="Interleaved 1F1B on two ranks: rank 0 has stages 0 and 2, rank 1 stages 1 and 3. A lane is a rank's time, "
    "a digit the forward of that micro-batch, a letter its backward, a dot is waiting:\n\n"
    f"```\n{LANES}```\n\nRank 0 begins with these actions. `2RECV_F0` takes from rank 1 the activations of micro-batch "
    f"0 for stage 2:\n\n```\n{TORCH_ORDER}\n```\n\nNothing was computed wrongly, but the step takes "
    f"{SLOTS[1]} forwards' time instead of {SLOTS[0]}. Why does rank 0 wait before its second forward?",
    hints=(
        "`0F1` is rank 0's own stage 0, with the next micro-batch of the batch. What does it need from rank 1?",
        "When can rank 1 send what `2RECV_F0` takes? And what stands behind it in the queue?",
    ),
    solution="`0F1` needs nobody: its input lies ready. But `2RECV_F0` stands before it, and what it takes is made by "
    "rank 1 in the very slots in which rank 0 should do `0F1`. Where a receive that has begun holds up what stands "
    "behind it, the rank waits, with work in its hands. Where the receive runs beside the computation, the same list "
    "costs nothing.\n\n"
    "The mending is to put each receive right before the action that uses it. Somebody who tried it on two GPUs went "
    "from 7,300 to 9,700 tokens per second; on two nodes it then hung, because two neighbours both sent first. So look "
    "at the order of sends on each link again.\n\nSource: issue 172668 of pytorch; 188833 has the trace.",
    options=(
        Option(
            "receive",
            "A receive for a later action stands before it",
            "Right: 2RECV_F0 is for 2F0, which comes four actions later. 0F1 could run at once and stands behind it.",
            True,
        ),
        Option(
            "input",
            "Its input has not come down from the rank above",
            "Stage 0 is the first: its input is the batch, and it is there from the start.",
        ),
        Option(
            "send",
            "The send of its first activations was not taken",
            "It was: rank 1 begins with micro-batch 0 in the slot after. Its lane shows it.",
        ),
        Option(
            "bubble",
            "It is the bubble that interleaving always leaves",
            "The first lanes are interleaved too, and rank 0 does its second forward at once. The bubble is at the "
            "ends of the step.",
        ),
        Option(
            "deadlock",
            "Two neighbours both send, so nothing moves on",
            "Then nothing would go on at all. Here all messages arrive, and the step ends, later.",
        ),
    ),
)

EXERCISES = (BOTH_SEND, RECEIVE_FIRST)
