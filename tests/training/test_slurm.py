"""Training as a SLURM job: slurmctld and slurmd of one node on loopback."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.compose import compose
from dragoman.training.fit import fit

PATH = f"{os.environ['PATH']}:/usr/sbin"
INSTALLED = shutil.which("slurmctld", path=PATH) and shutil.which("slurmd", path=PATH)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INSTALLED, reason="needs SLURM: apt-get install slurm-wlm")]
ROOT = Path(__file__).parents[2]
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={uid}
SlurmdUser={uid}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
SelectType=select/linear
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=300
NodeName={host} NodeAddr=127.0.0.1
PartitionName=plain Nodes=ALL PriorityTier=1
PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime=300
PartitionName=urgent Nodes=ALL PriorityTier=2
"""
# The first start is slow enough for a preemption in the middle.
TRAIN = """
import os, sys, time
from dragoman.commands.train import main
from dragoman.training.progress import ProgressCallback

if "SLURM_RESTART_COUNT" not in os.environ:
    ProgressCallback.on_train_batch_start = lambda *_: time.sleep(0.5)
sys.exit(main())
"""
SETTINGS = """experiment=copy model.score=additive data.max_tokens=200
trainer.validate_every=10 trainer.validation_pairs=10 trainer.max_steps=40"""
WAIT = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Run a command of SLURM in the folder `slurm.folder`; return its output."""
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [free.getsockname()[1] for free in (one, two)]
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, ports=ports, uid=os.getuid()))
    env = {**os.environ, "PATH": PATH, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    env |= {"SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def slurm(*command):
        return subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True).stdout.strip()

    slurm.folder = folder
    slurm("slurmctld")
    slurm("slurmd")
    yield slurm
    slurm("scancel", f"--user={os.getuid()}")
    wait_for(lambda: not slurm("squeue", "--noheader"))
    slurm("scontrol", "shutdown")


def submit(slurm, partition, program, *settings):
    """Submit slurm.sh with `program` as train.py; return job, log and state function."""
    (slurm.folder / "train.py").write_text(program)
    job = slurm("sbatch", "--parsable", f"--partition={partition}", ROOT / "scripts" / "slurm.sh", *settings)
    show = ("squeue", "--noheader", "--states=all", f"--job={job}", "--Format=State,RestartCnt")
    return job, slurm.folder / f"slurm-{job}.log", lambda: slurm(*show).split()


def wait_for(condition):
    deadline = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("event", ["plain", "grace", "USR1"])
def test_a_stopped_job_returns_and_ends_equal(event, slurm, outcome):
    """SLURM requeues a preempted job; slurm.sh does with grace time or SIGUSR1."""
    settings = [*SETTINGS.split(), f"data.cache={slurm.folder / 'cache'}"]
    run, partition = slurm.folder / "runs" / event, "plain" if event == "USR1" else event
    job, log, state = submit(slurm, partition, TRAIN, *settings, f"run_dir={run}")
    wait_for((run / "last.ckpt").exists)
    if event == "USR1":
        slurm("scancel", "--batch", "--signal=USR1", job)
    else:
        slurm("sbatch", "--partition=urgent", "--output=/dev/null", "--wrap=sleep 1")
    wait_for(lambda: state()[0] in ("COMPLETED", "FAILED"))
    assert state() == ["COMPLETED", "1"], log.read_text()
    assert "stopped, saved in" in log.read_text()
    assert outcome(run) == outcome(fit(compose([*settings, f"run_dir={slurm.folder / 'straight'}"])).parent)


def test_a_signal_requeues_a_job_and_scancel_ends_it(slurm):
    """SLURM sends SIGUSR1 to the script a minute before the end of its time."""
    job, log, state = submit(slurm, "plain", WAIT)
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    slurm("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: log.read_text().count("ready") == 2)
    slurm("scancel", job)
    wait_for(lambda: state()[0] not in ("RUNNING", "COMPLETING"))
    assert state() == ["CANCELLED", "1"]
