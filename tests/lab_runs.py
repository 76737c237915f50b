"""How the tests start a lab as a reader does: torchrun and accelerate launch, as arguments of this Python."""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
LAUNCH = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", "labs/launch/accelerate.yaml"]
