"""The exercise of `pipeline` on two neighbors that both send."""

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
    title="A pipeline that hangs",
    minutes=4,
    prompt="1F1B on four ranks hangs. A send here blocks until its receiver takes the message, and a rank starts a "
    "receive only when it needs the tensor. The last operation of each rank is:\n\n"
    f"```\n{STANDING}```\n\nAll four are blocked in a send. What has to change so that they go on?",
    hints=(
        "For each rank: when will the rank that it sends to receive next?",
        "Follow from rank 0 who waits for whom. Where does it turn back?",
    ),
    solution="Rank 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 3, and **rank 3 for rank 2**. Ranks 2 and 3 "
    "are the cycle, and ranks 0 and 1 wait behind it. Rank 2 would receive the gradient after its send, and rank 3 "
    "would receive the activations after its own.\n\n"
    "One of two neighbors has to be ready to receive before its own send has finished. It can start the receive with "
    "`irecv` before it waits for the send, or start its send and not wait for it, or follow a rule that even ranks "
    "send first and odd ranks receive first. This has to hold on **every** link: if you fix only this one, ranks 1 and "
    "2 block each other in the same way a moment later.",
    options=(
        Option(
            "pair",
            "Of neighbors like 2 and 3 one must be ready to receive",
            "Right: ranks 2 and 3 wait for each other, and ranks 0 and 1 wait behind them. Start the receive before "
            "you wait for the send, on every link.",
            True,
        ),
        Option(
            "first",
            "Rank 0 must not send its activations so far ahead",
            "Rank 0 is as far ahead as 1F1B requires: three warm-up forwards and one more. It waits because rank 1 "
            "does.",
        ),
        Option(
            "last",
            "Rank 3 must keep its gradients until the step's end",
            "Then rank 2 would never get the gradient for its first backward, and no rank could do one. The gradient "
            "is what 1F1B needs first.",
        ),
        Option(
            "patience",
            "The timeout must be longer: messages are on their way",
            "None of the four messages is on its way: a send ends when its receiver takes the message, and no rank "
            "is receiving. They would wait forever.",
        ),
        Option(
            "smaller",
            "Messages must be smaller, to fit the network's buffers",
            "Some libraries copy a small message into a buffer, and the send ends. Then the job hangs on the day when "
            "the messages are larger. The order is the fault.",
        ),
    ),
)

EXERCISES = (BOTH_SEND,)
