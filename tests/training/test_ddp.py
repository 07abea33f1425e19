"""Two processes, one run: they share the work and arrive where one process would have.

This file is both the tests and, run as a program, one of the two processes: `work` trains a minute model through
`fit` and notes what passed through it. The processes talk over gloo on loopback, on CPUs.
"""

import dataclasses
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle
from dragoman.config import Config
from dragoman.data.collate import collate
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig, TranslationData
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.special import EOS
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig, TranslationModule

ROOT = Path(__file__).parents[2]
PHRASES = ROOT / "data" / "phrasebook" / "handwritten" / "people.tsv"
RANKS = 2


def config_of(folder: Path, *, max_steps: int = 1, devices: int = RANKS) -> Config:
    """Of however many devices: a step is RANKS batches."""
    return Config(
        run_dir=str(folder / ("run" if devices == RANKS else "alone")),
        data=DataConfig(
            corpora=[CorpusConfig(path=str(PHRASES))],
            tokenizer=TokenizerConfig(kind="char", vocab_size=900),
            cache=str(folder / "cache"),
            max_tokens=1500,
            validation_size=4,
            test_size=4,
        ),
        model=ModelConfig(
            d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0
        ),
        training=TrainingConfig(warmup_steps=5, accumulate=RANKS // devices),
        trainer=TrainerConfig(
            accelerator="cpu",
            precision="32",
            devices=devices,
            max_steps=max_steps,
            validation_pairs=4,
            samples=0,
        ),
    )


def work(folder: Path, max_steps: int, devices: int) -> None:
    """What this rank saw, step by step, saved as seen-<rank>.pt; seen-alone.pt where there is one device."""
    seen: dict[str, Any] = {"batches": [], "gradients": [], "measured": []}
    teach, divide = TranslationModule.training_step, TranslationModule.on_before_optimizer_step

    def training_step(self: TranslationModule, batch: Any, index: int) -> torch.Tensor:
        if not seen["batches"]:
            seen["begin"] = {name: value.clone() for name, value in self.model.state_dict().items()}
        seen["batches"].append(batch)
        return teach(self, batch, index)

    def on_before_optimizer_step(self: TranslationModule, optimizer: torch.optim.Optimizer) -> None:
        divide(self, optimizer)
        seen["gradients"].append([p.grad.clone() for p in self.model.parameters() if p.grad is not None])
        seen["measured"].append(dict(self.measured))
        seen["end"] = self.model.state_dict()  # names the weights themselves: they are stepped after this

    TranslationModule.training_step = training_step  # type: ignore[method-assign]
    TranslationModule.on_before_optimizer_step = on_before_optimizer_step  # type: ignore[method-assign]
    fit(config_of(folder, max_steps=max_steps, devices=devices))
    batches = [{name: getattr(b, name) for name in ("src", "tgt_in", "tgt_out")} for b in seen["batches"]]
    seen |= {"batches": batches, "gradients": seen["gradients"][0]}
    name = "alone" if devices == 1 else os.environ["LOCAL_RANK"]
    torch.save(seen, folder / f"seen-{name}.pt")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TranslationData]:
    """The corpus, prepared once, before the two need it."""
    folder = tmp_path_factory.mktemp("ddp")
    data = TranslationData(config_of(folder).data, folder / "preparation", seed=1)
    data.prepare()
    return folder, data


@pytest.fixture(scope="module")
def ranks(prepared: tuple[Path, TranslationData]) -> list[dict[str, Any]]:
    """What each of two processes saw in the first epoch."""
    folder, data = prepared
    steps = -(-data.batches_per_epoch // RANKS)
    ended = together(folder, str(steps))
    assert [code for code, _ in ended] == [0] * RANKS, "\n".join(said for _, said in ended)
    return [torch.load(folder / f"seen-{rank}.pt", weights_only=True) for rank in range(RANKS)]


def together(folder: Path, *arguments: str, n: int = RANKS) -> list[tuple[int, str]]:
    """Run this file as n processes; how each ended, and what it said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(folder), str(n), *arguments]
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        said = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out) for process, out in zip(processes, said, strict=True)]


@pytest.fixture(scope="module")
def alone(prepared: tuple[Path, TranslationData], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What one process saw that gathers the gradients of two batches, in as many steps."""
    folder, _ = prepared
    ((code, said),) = together(folder, str(len(ranks[0]["measured"])), n=1)
    assert code == 0, said
    return torch.load(folder / "seen-alone.pt", weights_only=True)


def sentences(batch: dict[str, torch.Tensor]) -> list[tuple[tuple[int, ...], ...]]:
    """The pairs of a batch as ids."""
    cut = [[row[: row.index(EOS)] for row in batch[side].tolist()] for side in ("src", "tgt_out")]
    return [tuple(map(tuple, pair)) for pair in zip(*cut, strict=True)]


def test_each_sentence_of_an_epoch_is_seen_by_one_process_and_once(
    prepared: tuple[Path, TranslationData], ranks: list[dict[str, Any]]
) -> None:
    _, data = prepared
    src, tgt = data.prepared.train_ids()
    corpus = sorted((tuple(src[i].tolist()), tuple(tgt[i].tolist())) for i in range(len(src)))
    batches = [
        sentences(batch) for rank in zip(*(r["batches"] for r in ranks), strict=True) for batch in rank
    ]
    assert len(batches) in (data.batches_per_epoch, data.batches_per_epoch + 1)
    # Where the number of batches is odd, the first of the epoch makes up for the missing one.
    assert sorted(pair for batch in batches[: data.batches_per_epoch] for pair in batch) == corpus
    assert batches[data.batches_per_epoch :] in ([], [batches[0]])


def test_two_processes_hold_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    one, two = ranks
    for name in one["end"]:
        assert torch.equal(one["begin"][name], two["begin"][name]), name
        assert torch.equal(one["end"][name], two["end"][name]), name
    assert one["measured"] == two["measured"]
    assert not all(torch.equal(one["begin"][name], one["end"][name]) for name in one["end"])


def test_a_step_of_two_processes_equals_one_process_that_gathers_their_batches(
    prepared: tuple[Path, TranslationData], ranks: list[dict[str, Any]]
) -> None:
    """The mean of the two means would weigh the tokens of the smaller batch more."""
    folder, data = prepared
    config = config_of(folder)
    model = Transformer(
        config.model, src_vocab_size=len(data.src_tokenizer), tgt_vocab_size=len(data.tgt_tokenizer)
    )
    model.load_state_dict(ranks[0]["begin"])
    settings = dataclasses.replace(config.training, accumulate=RANKS)
    module = TranslationModule(model, settings, max_steps=config.trainer.max_steps)
    module._trainer = OneProcess()
    module._fabric = None
    for rank in ranks:
        pairs = sentences(rank["batches"][0])
        batch = collate([list(src) for src, _ in pairs], [list(tgt) for _, tgt in pairs])
        (module.training_step(batch, 0) / RANKS).backward()  # Lightning divides so
    module.on_before_optimizer_step(module.configure_optimizers())
    assert module.measured == pytest.approx(ranks[0]["measured"][0], rel=1e-6)
    together = [p.grad for p in model.parameters() if p.grad is not None]
    for mine, theirs in zip(together, ranks[0]["gradients"], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_the_losses_and_weights_of_two_processes_are_those_of_one_with_accumulation(
    prepared: tuple[Path, TranslationData], ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    """Through a whole epoch: the learning rate, the clipping and Adam's averages go the same way."""
    whole = (
        prepared[1].batches_per_epoch // RANKS
    )  # steps; where batches are odd, the last one is not the same
    assert whole > 3
    for one, other in zip(ranks[0]["measured"][:whole], alone["measured"][:whole], strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert len({one["loss"] for one in alone["measured"]}) > 3
    if prepared[1].batches_per_epoch % RANKS == 0:
        for name, weights in alone["end"].items():
            torch.testing.assert_close(weights, ranks[0]["end"][name], atol=1e-5, rtol=1e-4)


class OneProcess:
    """What a module asks its Trainer for."""

    world_size, global_step, precision = 1, 0, "32-true"
    datamodule = type("Data", (), {"consumed": 0})()


def test_both_leave_one_run_with_one_bundle(
    prepared: tuple[Path, TranslationData], ranks: list[dict[str, Any]]
) -> None:
    folder, data = prepared
    assert bundle.load(folder / "run" / "bundle").meta["data"]["fingerprint"] == data.fingerprint
    writers = {path.name.split(".")[-2] for path in (folder / "run" / "tensorboard").glob("events.*")}
    assert len(writers) == 1, "events of one process only"
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert (metrics["finished"], metrics["step"]) == ("max_steps", len(ranks[0]["measured"]))


@pytest.mark.slow
def test_the_door_trains_on_two_devices_and_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    def train(name: str, max_steps: int) -> dict[str, Any]:
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "train.py"), f"name={name}", f"data.corpora=[{{path: {PHRASES}}}]",
                "data.tokenizer.vocab_size=1200", "data.validation_size=20", "data.test_size=20",
                "data.max_tokens=300", "data.max_length=60",
                "model=tiny", "model.dropout=0.2", "training.warmup_steps=4", "training.average_last=2",
                "training.patience=9", "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2",
                "trainer.precision='32'", f"trainer.max_steps={max_steps}", "trainer.validate_every=3",
                "trainer.validation_pairs=4", "trainer.samples=1",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("done; the best model is in") == 1, "only the first process speaks"
        run = tmp_path / "runs" / name
        assert bundle.load(run / "bundle").meta["name"] == name
        return torch.load(run / "last.ckpt", weights_only=True)

    train("broken", 4)
    broken, straight = train("broken", 8), train("straight", 8)
    assert broken["global_step"] == straight["global_step"] == 8
    for name, weights in straight["state_dict"].items():
        assert torch.equal(weights, broken["state_dict"][name]), name


@pytest.mark.slow
def test_what_the_first_process_cannot_write_stops_both(
    prepared: tuple[Path, TranslationData], tmp_path: Path
) -> None:
    shutil.copytree(prepared[0] / "cache", tmp_path / "cache")
    for code, said in together(tmp_path, "3", "100000"):
        assert code != 0
        assert "File too large" in said
        assert "UserError: cannot write" in said.splitlines()[-1], said
    assert not (tmp_path / "run" / "last.ckpt").exists()


if __name__ == "__main__":
    _, place, devices, steps, *limit = sys.argv
    if limit and os.environ["LOCAL_RANK"] == "0":  # the first process may write no larger files
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), resource.RLIM_INFINITY))
    work(Path(place), int(steps), int(devices))
