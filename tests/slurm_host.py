"""A Slurm of two nodes on this machine for a test: munged, slurmctld and two slurmd, in a folder of its own."""

import os
import secrets
import shutil
import socket
import subprocess
import time

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "setpriv")
PATH = f"{os.environ['PATH']}:/usr/sbin"
PATIENCE_S = 30
NODES = (socket.gethostname(), f"{socket.gethostname()}-second")  # in this order: processes meet on the first

CONF = """ClusterName=book
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:8
NodeName={second} NodeHostname={second} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """What this machine lacks for a Slurm of its own, as words; "" where nothing is missing."""
    absent = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "needs root, to start Slurm's daemons"


def free_ports(count):
    """Numbers of TCP ports that nobody listens on."""
    open_ = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [one.getsockname()[1] for one in open_]
    for one in open_:
        one.close()
    return numbers


class Slurm:
    """A context manager; inside it `run("sbatch", ...)` and its like talk to this Slurm. Ends only what it started.

    Two nodes, each with 8 GPUs that are only counted. RuntimeError with the daemons' last lines where the nodes do
    not become idle.
    """

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.environment = os.environ | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        conf = CONF.format(folder=self.folder, host=NODES[0], second=NODES[1], ports=free_ports(3))
        (self.folder / "slurm.conf").write_text(conf)
        for i in range(8):
            (self.folder / f"gpu{i}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self):
        at = self.folder
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--socket={at}/munge.socket",
            f"--key-file={at}/munge.key",
            f"--pid-file={at}/munge.pid",
            f"--seed-file={at}/munge.seed",
            f"--log-file={at}/munge.log",
        )
        self.wait(lambda: (at / "munge.socket").exists(), "munged's socket")
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T").split() == ["idle"], "two idle nodes")

    def _daemon(self, *command):
        log = (self.folder / f"{len(self.daemons)}-{command[0]}.said").open("w")
        with_us = ["setpriv", "--pdeathsig", "TERM", *command]  # a killed test leaves no daemon behind
        self.daemons.append(
            subprocess.Popen(
                with_us, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        )

    def run(self, *command, **more):
        """What a Slurm command printed, "" where it failed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, **more)
        self.error = done.stderr.strip()
        return done.stdout.strip() if done.returncode == 0 else ""

    def wait(self, holds, what, seconds=PATIENCE_S):
        """Wait until `holds()`; RuntimeError that names `what` and shows the logs after `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"no {what} within {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        """The last lines of all daemons."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.said")])
        return "\n".join(
            f"{file.name}: {line}" for file in files for line in file.read_text(errors="replace").splitlines()[-8:]
        )

    def close(self):
        """End the daemons, last one first, by their process ids."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
