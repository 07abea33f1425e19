"""Measure a model: python scripts/evaluate.py --model runs/zh_en

BLEU, chrF and TER with their signatures: on the test split of the model's run; on another corpus with --corpus; on
plain files with --src and --ref (once per reference file). The hypotheses are saved beside the scores. A model of
both directions is evaluated in one of them: --direction zh_en. --challenge counts the challenge sentences
(data/challenge) that a model translates correctly, by phenomenon. --warnings counts the lines for which translate.py
warns, and writes the table into the model card. The sources are translated as they are (a warning is a false alarm,
unless the translation is bad) and damaged in four ways (a warning is right).
"""

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dragoman import files
from dragoman.bundle import CARD, evaluations, locate
from dragoman.commands import cli
from dragoman.config import CorpusConfig
from dragoman.data.cleaning import converter
from dragoman.data.text import Pair
from dragoman.errors import UserError
from dragoman.evaluation import testsets
from dragoman.evaluation.scores import challenge, evaluate
from dragoman.languages import Direction
from dragoman.translation.lines import Translation
from dragoman.translation.translator import Translator


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--script", choices=("hans", "hant"), help="convert Chinese to Simplified or Traditional")
    parser.add_argument("--output", metavar="FOLDER", help="default: evaluation/TESTSET of the run")
    parser.add_argument("--challenge", metavar="FILE", nargs="?", const="", help="challenge set (included for zh_en)")
    parser.add_argument("--warnings", action="store_true", help="write rates of warnings into the model card")
    cli.add_translation_options(parser)
    args = parse(parser, argv)
    if args.challenge is not None and (args.src or args.corpus or args.warnings or args.script):
        raise UserError("--challenge: does not go with --src, --corpus, --warnings or --script. Remove one")
    folder = locate(Path(args.model))
    translator = Translator.load(folder, args.device, engine=args.engine)
    if args.challenge is not None:
        run_challenge(args, translator, evaluations(folder))
        return
    name, pairs, direction = test_set_of(args, translator, folder.parent)
    if args.script:
        name, pairs = f"{name}-{args.script}", in_script(pairs, args.script, direction)
    suffix = f"-{direction}" if len(translator.bundle.directions) > 1 else ""
    output = Path(args.output) if args.output else evaluations(folder) / f"{name}{suffix}"
    search = cli.search_config(args, translator.bundle.search)
    if args.warnings:
        with cli.progress_bar(None) as progress:
            settings = {"direction": str(direction), "batch_tokens": args.batch, "progress": progress}
            text = warning_table(partial(translator.stream, search=search, **settings), pairs)
        add_to_card(folder / CARD, f"Warnings, {direction}, {name}", text)
        print(f"{text}\n\nThe table is in the model card: {folder / CARD}")
        return
    with cli.progress_bar(len(pairs)) as progress:
        settings = {"name": name, "direction": direction, "batch_tokens": args.batch, "progress": progress}
        scores = evaluate(translator, pairs, output, search, **settings)
    for part, metrics in scores.items():
        if len(scores) > 1:
            print(f"{part}:")
        for score in metrics.values():
            print(score)
    print(f"hypotheses, references, scores: {output}")


def parse(parser: cli.Parser, argv: list[str]) -> argparse.Namespace:
    """Return the arguments, after adding the options that name a test set."""
    test_set = parser.add_mutually_exclusive_group()
    test_set.add_argument("--corpus", metavar="PATH", help="a file, a folder, or a dataset on the hub")
    test_set.add_argument("--src", metavar="FILE", help="plain lines to translate")
    parser.add_argument("--name", help="configuration of a hub dataset, e.g. en-zh")
    parser.add_argument("--split", default="test", help="validation or test; with --corpus also train (default: test)")
    parser.add_argument("--src-column", metavar="COLUMN", help="of a corpus: the source's column (its language)")
    parser.add_argument("--tgt-column", metavar="COLUMN", help="of a corpus: the target's column (its language)")
    parser.add_argument("--root", metavar="FOLDER", help="folder of local corpora (default: $DRAGOMAN_DATA)")
    parser.add_argument("--ref", metavar="FILE", action="append", default=[], help="references, line by line")
    args = parser.parse_args(argv)
    if bool(args.src) != bool(args.ref):
        raise UserError("--src, --ref: one is missing. Give lines to translate, and their references")
    return args


def run_challenge(args: argparse.Namespace, translator: Translator, folder: Path) -> None:
    """Translate the challenge set, print how many pass, save the translations."""
    direction = args.direction or str(translator.bundle.directions[0])
    path = Path(args.challenge) if args.challenge else files.included(f"data/challenge/{direction}.tsv")
    if not path.is_file():
        raise UserError(f"{path}: no such challenge set. There is one for zh_en only: write your own and name the FILE")
    output = Path(args.output) if args.output else folder / f"challenge-{path.stem}"
    passed = challenge(translator, path, output, cli.search_config(args, translator.bundle.search), direction=direction)
    table = Table("phenomenon", "passed", "sentences", "share", title=f"{path.stem} challenge set")
    for name, (n_passed, n_total) in passed.items():
        table.add_row(
            name, str(n_passed), str(n_total), f"{n_passed / n_total:.0%}", end_section=name == list(passed)[-2]
        )
    Console().print(table)
    print(f"translations: {output}")


def test_set_of(args: argparse.Namespace, translator: Translator, run: Path) -> tuple[str, list[Pair], Direction]:
    """Return the test set named by the options: its name, pairs and direction."""
    directions = translator.bundle.directions
    if args.src:
        pairs = testsets.of_files(Path(args.src), list(map(Path, args.ref)))
        sample = "\n".join(pair.src for pair in pairs[:1000])
        return Path(args.src).name.split(".")[0], pairs, translator.direction(args.direction, sample)
    if len(directions) > 1 and not args.direction:
        both = " and ".join(map(str, directions))
        raise UserError(f"{run}: translates {both}. Choose one with --direction")
    direction = translator.direction(args.direction, "")
    if not args.corpus:
        return args.split, testsets.of_run(run, args.split, direction, directions[0]), direction
    columns = {"src_column": args.src_column, "tgt_column": args.tgt_column}
    corpus = CorpusConfig(path=args.corpus, name=args.name, **columns)
    pairs = testsets.of_corpus(corpus, args.split, direction, directions[0], args.root)
    return f"{corpus.short_name}-{args.split}", pairs, direction


def in_script(pairs: Sequence[Pair], script: str, direction: Direction) -> list[Pair]:
    """Convert the Chinese of a test set to hans or hant."""
    src, tgt = (converter(script, language) for language in direction)
    return [Pair(src(pair.src), tgt(pair.tgt), tuple(map(tgt, pair.references)), pair.corpus) for pair in pairs]


def warning_table(translate: Callable[[Iterable[str]], Iterable[Translation]], pairs: Sequence[Pair]) -> str:
    """Return a table: percentage of lines with any warning, and with each kind.

    Its rows are the sources as they are, and damaged in four ways.
    """
    rng, sources = random.Random(1), [pair.src for pair in pairs]
    inputs = {
        "good": sources,
        "shuffled characters": ["".join(rng.sample(text, len(text))) for text in sources],
        "wrong language": [pair.tgt for pair in pairs],
        "twenty times the same": [text * 20 for text in sources],
        # Hardly any corpus has characters of CJK Extension A.
        "unseen characters": [
            "".join(c if n % 2 else chr(rng.randrange(0x3400, 0x4DC0)) for n, c in enumerate(text)) for text in sources
        ],
    }
    counts = {name: Counter[str]() for name in inputs}
    results = iter(translate(chain(*inputs.values())))
    for counter in counts.values():
        for result in islice(results, len(pairs)):
            counter.update({"any", *(text.partition(":")[0] for text in result.warnings)} if result.warnings else ())
    kinds = ["any", *sorted(set(chain(*counts.values())) - {"any"})]
    rows = [["input", *kinds], ["---", *("---:" for _ in kinds)]]
    rows += [[name, *(f"{100 * n[kind] / len(pairs):.1f}" for kind in kinds)] for name, n in counts.items()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"Percentage of lines with a warning, for {len(pairs):,} sentences as they are, and damaged:\n\n{table}"


def add_to_card(path: Path, title: str, text: str) -> None:
    """Add the section of this title to a model card, or replace it."""
    others = re.sub(rf"(?ms)^## {re.escape(title)}\n.*?(?=^## |\Z)", "", path.read_text("utf-8"))
    before, licence, after = others.partition("\n## Licence")
    files.write(path, f"{before}\n## {title}\n\n{text}\n{licence}{after}".encode())


if __name__ == "__main__":
    sys.exit(main())
