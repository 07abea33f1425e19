"""DDP on the CPU (gloo): a run of two processes, compared with one process."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow
WORK = """
import os, pathlib, signal, sys, threading, time
from dragoman.compose import compose
from dragoman.training.fit import Stopped, fit

def kill_after_a_checkpoint():
    while not list(pathlib.Path("runs").glob("*/last.ckpt")):
        time.sleep(0.02)
    pathlib.Path("killed").touch(exist_ok=False)
    os.kill(os.getpid(), signal.SIGKILL)

if "TORCHELASTIC_RUN_ID" in os.environ and os.environ["RANK"] == "1" and not os.path.exists("killed"):
    threading.Thread(target=kill_after_a_checkpoint, daemon=True).start()
try:
    fit(compose(sys.argv[1:]))
except Stopped as stopped:
    sys.exit(128 + stopped.signum)
"""


@pytest.fixture
def train(tmp_path, corpus):
    """Return a function that trains in a new process and returns the run's folder."""

    def settings_of(name, devices, *more, max_steps, accumulate=1, patience=0, nodes=1):
        corpora = ",".join(f"{{path: {corpus / part}}}" for part in ("farm", "town"))
        return [
            f"name={name}", f"data.corpora=[{corpora}]", "data.tokenizer.vocab_size=330", "data.test_size=0",
            "data.max_tokens=120", "data.max_length=40", f"data.cache={corpus / 'cache'}", "model=tiny", "recipe=none",
            "model.dropout=0.0", "model.score=additive", "training.warmup_steps=4",
            f"training.accumulate={accumulate}", "trainer.accelerator=cpu", f"trainer.devices={devices}",
            "trainer.precision='32'", f"trainer.max_steps={max_steps}", "trainer.validate_every=3",
            "trainer.validation_pairs=7", "trainer.samples=1", f"training.patience={patience}",
            f"trainer.nodes={nodes}", *more,
        ]  # fmt: skip

    def train(name, devices, *more, **options):
        (tmp_path / "work.py").write_text(WORK)
        command = [sys.executable, "work.py", *settings_of(name, devices, *more, **options)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("done; the best model is in") == 1, "only the first process speaks"
        return tmp_path / "runs" / name

    train.settings_of, train.folder = settings_of, tmp_path
    return train


@pytest.fixture
def two_nodes(train):
    """Run torchrun for each of two nodes; return the exit codes and the output."""

    def run(*settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-id=test"]
        command += ["--max-restarts=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "work.py"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        # Else a restarted process can read the address of a dead one and wait for it.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
        (train.folder / "work.py").write_text(WORK)
        agents = [subprocess.Popen([*command, *each], cwd=train.folder, **options) for each in settings]
        try:
            printed = "".join(agent.communicate(timeout=300)[0] for agent in agents)
        finally:
            for agent in agents:
                agent.kill()
        return [agent.returncode for agent in agents], printed

    return run


def test_two_processes_equal_gradient_accumulation(train, checkpoint_of, metrics_of):
    """A mean of two means would give the tokens of the smaller batch more weight."""
    # AdamW's first steps have the sign of a gradient, however small it is; SGD's are proportional to it.
    sgd = "training.optimizer=sgd", "training.lr=0.05"
    two, one = train("two", 2, *sgd, max_steps=12), train("one", 1, *sgd, max_steps=12, accumulate=2)
    per_epoch = re.search(r"(\d+) batches an epoch", (one / "train.log").read_text())[1]
    assert int(per_epoch) < 24, "an epoch must end"
    assert metrics_of(two)["train"] == pytest.approx(metrics_of(one)["train"], rel=1e-4)
    texts = [json.loads((run / "validation.json").read_text(encoding="utf-8")) for run in (two, one)]
    assert texts[0] == texts[1]
    losses = [[record["loss"] for record in metrics_of(run)["validations"]] for run in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0] - 0.1
    states = [checkpoint_of(run)["state_dict"] for run in (two, one)]
    for name, weights in states[0].items():
        torch.testing.assert_close(weights, states[1][name], atol=1e-5, rtol=1e-4)


def test_a_resumed_run_of_two_equals_one_that_never_stopped(train, outcome):
    train("broken", 2, max_steps=4, patience=9)
    ends = [outcome(train(name, 2, max_steps=6, patience=9)) | {"records": 0} for name in ("broken", "straight")]
    assert ends[0] == ends[1]


def test_two_nodes_resume_after_one_is_killed(train, two_nodes, outcome):
    """torchrun restarts both processes, and they resume from the last checkpoint."""
    straight = train("straight", 2, max_steps=12, patience=9)
    (train.folder / "runs").rename(train.folder / "other")
    settings = train.settings_of("broken", 1, max_steps=12, patience=9, nodes=2)
    codes, printed = two_nodes(settings, settings)
    assert codes == [0, 0], printed
    assert (train.folder / "killed").exists()
    assert "resuming runs/broken at step" in printed
    ends = [outcome(run) for run in (train.folder / "runs" / "broken", train.folder / "other" / straight.name)]
    assert ends[0] | {"records": 0} == ends[1] | {"records": 0}
