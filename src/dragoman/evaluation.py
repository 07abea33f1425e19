"""How good a bundle is on a test set: its translations, and their BLEU, chrF and TER.

What is measured can be measured again without us: the hypotheses and every reference lie beside the scores
as plain lines, and `sacrebleu` on these files gives the same numbers; scores.json holds the command. This
file knows where test sets come from (a run's own split, a corpus, files); it refuses to know how anything is
translated or scored.
"""

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import durable, metrics
from dragoman.data.corpus import SPLITS, CorpusConfig, clean_text
from dragoman.data.readers import check_aligned, lines
from dragoman.data.sources import find
from dragoman.errors import UserError, suggest
from dragoman.languages import Direction
from dragoman.metrics import Score
from dragoman.search.hypothesis import SearchConfig
from dragoman.untrusted import read_yaml, refuse_resolvers

if TYPE_CHECKING:
    from dragoman.translator import Translator

_HYPOTHESES, _SCORES = "hypotheses.txt", "scores.json"


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sources with their references, each with at least one; `name` names the folder of the results."""

    __test__ = False  # pytest: not a test, in spite of its name

    name: str
    sources: list[str]
    references: list[tuple[str, ...]]


def split_of_run(run: Path, split: str, direction: Direction) -> TestSet:
    """The validation or test pairs that a training run kept aside, from its own configuration.

    Backwards, the one reference of a sentence is its source: further references are of the run's target side.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dragoman.data.datamodule import DataConfig, TranslationData

    _check_split(split)
    saved = run / "config.yaml"
    if not saved.is_file():
        raise UserError(
            f"{run} is not a run (no config.yaml): say what to translate, --corpus or --src and --ref"
        )
    try:
        content = read_yaml(saved)
        refuse_resolvers(content)
        assert isinstance(content, dict)
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), content["data"]))
        assert isinstance(config, DataConfig)
    except (OmegaConfBaseException, AssertionError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{saved} is not the configuration of a run: {' '.join(str(error).split())}"
        ) from error
    with redirect_stdout(sys.stderr):  # what preparing has to say is not a result
        data = TranslationData(config, run, seed=int(content.get("seed", 1)))
        data.prepare()
    pairs = list(data.test if split == "test" else data.validation)
    if direction == (config.tgt, config.src):
        pairs = [pair.swapped() for pair in pairs]
    found = [(pair.src, pair.references or (pair.tgt,)) for pair in pairs]
    return _test_set(split, found, f"the {split} split of {run}")


def split_of_corpus(config: CorpusConfig, split: str, *, src: str, tgt: str, root: str | None) -> TestSet:
    """A split of a corpus as it is: a file, a folder or a hub dataset with columns `src`, `tgt`, `references`."""
    _check_split(split)
    splits = find(dataclasses.replace(config, split=split), src, tgt, root).open()
    if split not in splits:
        raise UserError(f"{config.label} has no split '{split}'; it has {', '.join(splits)}")
    found = []
    for rows in splits[split].chunks:
        everything = rows.references or [[] for _ in rows.tgt]
        for source, target, others in zip(rows.src, rows.tgt, everything, strict=True):
            # A corpus read backwards has references of its other side: they do not contain the target.
            found.append(
                (source, (target, *(o for o in others if o != target)) if target in others else (target,))
            )
    return _test_set(
        f"{Path(config.path or config.src_path or '').name.split('.')[0]}-{split}", found, config.label
    )


def files(src: Path, references: Sequence[Path]) -> TestSet:
    """Aligned plain files: sources, and one or more with references; after the first, a blank line is none."""
    for reference in references:
        check_aligned(src, reference)
    columns = [list(lines(path)) for path in (src, *references)]
    found = [
        (source, (first, *(other for other in others if other.strip())))
        for source, first, *others in zip(*columns, strict=True)
    ]
    return _test_set(src.name.split(".")[0], found, str(src))


def evaluate(
    translator: "Translator",
    test_set: TestSet,
    folder: Path,
    search: SearchConfig,
    *,
    direction: Direction,
    batch_tokens: int = 4096,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Score]:
    """Translate and score one direction.

    Writes hypotheses.txt, source.txt, reference.N.txt and scores.json into `folder`. An evaluation that lies there
    already is replaced; anything else there is a UserError.
    """
    if folder.exists() and not (
        folder.is_dir() and ((folder / _SCORES).is_file() or not any(folder.iterdir()))
    ):
        raise UserError(f"{folder} exists and holds no evaluation: it is left alone; name another --output")
    begin = time.monotonic()
    found = translator.stream(
        test_set.sources,
        search,
        batch_tokens=batch_tokens,
        direction=str(direction),
        scored=False,
        progress=progress,
    )
    hypotheses = [clean_text(translation.text) for translation in found]
    seconds = time.monotonic() - begin
    scores = metrics.evaluate(hypotheses=hypotheses, references=test_set.references, tgt=direction.tgt)
    streams = metrics.reference_streams(test_set.references)
    names = [f"reference.{k}.txt" for k in range(len(streams))]
    options = ["-m", *metrics.METRICS, *metrics.command_line_options(direction.tgt)]
    record = {
        "scores": {name: dataclasses.asdict(score) for name, score in scores.items()},
        "check": shlex.join(["sacrebleu", *names, "-i", _HYPOTHESES, *options]),
        "test_set": test_set.name,
        "sentences": len(hypotheses),
        "model": translator.bundle.meta.get("name"),
        "engine": translator.engine.name,
        "direction": str(direction),
        "search": dataclasses.asdict(search),
        "seconds": round(seconds, 2),
    }

    def fill(new: Path) -> None:
        _write_lines(new / _HYPOTHESES, hypotheses)
        _write_lines(new / "source.txt", test_set.sources)
        for name, stream in zip(names, streams, strict=True):
            _write_lines(new / name, stream)
        (new / _SCORES).write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    durable.replace_folder(folder, fill)
    return scores


def _test_set(name: str, found: Iterable[tuple[str, tuple[str, ...]]], where: str) -> TestSet:
    """Cleaned, so that every text is one line of a file."""
    cleaned = [(clean_text(source), tuple(map(clean_text, references))) for source, references in found]
    if not cleaned:
        raise UserError(f"{where} is empty: there is nothing to evaluate")
    return TestSet(name, [source for source, _ in cleaned], [references for _, references in cleaned])


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UserError(
            f"there is no split '{split}'{suggest(split, SPLITS)}; choose from {', '.join(SPLITS)}"
        )


def _write_lines(path: Path, texts: Sequence[str]) -> None:
    path.write_bytes("".join(text + "\n" for text in texts).encode())
