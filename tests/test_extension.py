"""A run with kinds that are registered outside of the package."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from dragoman import Translator, metrics
from dragoman.compose import compose
from dragoman.data import readers
from dragoman.model import attention, position, transformer
from dragoman.search import search
from dragoman.search.search import Greedy
from dragoman.training import fit as training
from dragoman.training import module, progress

PAIRS = [(f"{a} {b} {c}", f"{c} {b} {a}") for a in "abcd" for b in "efgh" for c in "ijkl"]
USED = set[str]()  # kinds whose toy has run


class ToyPosition(position.Position):
    ctranslate2 = False

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        USED.add("position")
        return -0.1 * (q_positions[:, None] - k_positions).abs()[None, None]


class ToyScore(attention.Dot):
    fused = ctranslate2 = False

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        USED.add("score")
        return -torch.cdist(q, k)


class ToyNorm(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        USED.add("norm")
        return self.weight * x / (1 + x.abs().amax(-1, keepdim=True))


class ToyOptimizer(torch.optim.Optimizer):
    """Sign descent, without a `fused` default."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        USED.add("optimizer")
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad.sign()
        return loss


class ToyMetric:
    """Percentage of hypotheses as long as a reference."""

    def corpus_score(self, hypotheses: list[str], streams: list[list[str]]) -> metrics.Score:
        USED.add("metric")
        same = sum(len(h) in map(len, refs) for h, *refs in zip(hypotheses, *streams, strict=True))
        return metrics.Score(name="toy", score=100 * same / len(hypotheses), signature="toy")

    def get_signature(self) -> str:
        return "toy"


class ToySearch(Greedy):
    """The second best piece at each step."""

    def pick(self, log_probs: Tensor) -> Tensor:
        USED.add("search")
        return log_probs.topk(2, dim=-1).indices[:, 1:]


class ToyLogger(CSVLogger):
    def log_metrics(self, *args: Any, **options: Any) -> None:
        USED.add("logger")


def read_toy(path: Path, columns: readers.Columns) -> Iterator[tuple[str, str]]:
    USED.add("format")
    rows = [line.split("|") for line in path.read_text().splitlines()]
    yield from ((row[0], row[1]) for row in rows)


KINDS: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "position": (position.POSITIONS, ToyPosition, ["model.position.kind=toy"]),
    "score": (attention.SCORES, ToyScore, ["model.score=toy"]),
    "norm": (transformer.NORMALIZATIONS, ToyNorm, ["model.normalization=toy"]),
    "schedule": (module.SCHEDULES, lambda step, warmup, last: USED.add("schedule") or 0.5, ["training.schedule=toy"]),
    "optimizer": (module.OPTIMIZERS, lambda groups, c, fused: ToyOptimizer(groups, c.lr), ["training.optimizer=toy"]),
    "metric": (metrics.METRICS, lambda tgt: ToyMetric(), ["trainer.metrics=[toy]", "training.monitor=toy"]),
    "format": (readers.READERS, read_toy, []),
    "search": (search.SEARCHES, ToySearch, ["search.kind=toy"]),
    "logger": (progress.LOGGERS, lambda folder, _: ToyLogger(str(folder), name="toy"), ["trainer.loggers=[toy]"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same tiny corpus in two formats."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "corpus.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS))
    (folder / "corpus.toy").write_text("".join(f"{src}|{tgt}\n" for src, tgt in PAIRS))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_registered_from_outside_works(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, toy, overrides = KINDS[kind]
    is_format = kind == "format"
    monkeypatch.setitem(registry, ".toy" if is_format else "toy", toy)
    monkeypatch.setattr(training, "export_bundle", lambda bundle, sources: "")  # tested elsewhere, and slow
    corpus = folder / ("corpus.toy" if is_format else "corpus.tsv")
    config = compose(
        [
            "experiment=smoke", f"data.corpora=[{{path: {corpus}}}]", "data.src=a", "data.tgt=b",
            "data.tokenizer.kind=char", "data.tokenizer.vocab_size=300", f"data.cache={folder / 'cache'}",
            f"run_dir={tmp_path / 'run'}",
            "training.monitor=loss", "trainer.max_steps=2", "trainer.validate_every=2", "trainer.samples=0",
            "trainer.precision=32", *overrides,
        ]
    )  # fmt: skip
    bundle = training.fit(config)
    translator = Translator.load(bundle, "cpu", engine="torch")
    assert len(translator.translate(["a b c"], batch_tokens=64)) == 1
    assert kind in USED
