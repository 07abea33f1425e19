"""Measure a model: python scripts/evaluate.py --model runs/zh_en

BLEU, chrF and TER with their signatures, on the test split of the model's own run; on another corpus with
--corpus; on plain files with --src and --ref (once per reference file). The hypotheses are written beside.
A model of both directions is measured in one at a time: --direction zh_en.
"""

import dataclasses
from pathlib import Path

from dragoman.doors import (
    Parser,
    Progress,
    add_direction_option,
    add_engine_options,
    add_search_options,
    open_door,
    search_config,
)
from dragoman.errors import UserError


def parser() -> Parser:
    parser = Parser("evaluate.py", __doc__ or "")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--corpus", metavar="PATH", help="a file, a folder, or a dataset on the hub")
    parser.add_argument("--name", help="the configuration of a hub dataset, e.g. en-zh")
    parser.add_argument("--split", default="test", help="train, validation or test (test)")
    parser.add_argument("--root", metavar="FOLDER", help="folder of local corpora (default: $DRAGOMAN_DATA)")
    parser.add_argument("--src", metavar="FILE", help="plain lines to translate")
    parser.add_argument(
        "--ref", metavar="FILE", action="append", default=[], help="their references, line by line"
    )
    parser.add_argument("--output", metavar="FOLDER", help="default: evaluation/TESTSET beside the bundle")
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="pieces computed at once (4096)")
    add_engine_options(parser)
    add_direction_option(parser)
    add_search_options(parser)
    return parser


def main() -> None:
    args = parser().parse()
    if bool(args.src) != bool(args.ref):
        raise UserError("--src and --ref go together: lines to translate, and what they should become")
    if args.src and args.corpus:
        raise UserError("give either --corpus or --src and --ref, not both")
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: at least 1 piece must be computed at once")
    if args.n_best not in (None, 1):
        raise UserError("--n-best: only the best translation of each line is scored")
    from dragoman import evaluation
    from dragoman.data.corpus import CorpusConfig
    from dragoman.description import locate
    from dragoman.translator import Translator

    folder = locate(Path(args.model))
    task = "--sample" if args.sample else None
    translator = Translator.load(folder, args.device, engine=args.engine, task=task)
    several = len(translator.bundle.directions) > 1
    if several and not args.direction and not args.src:  # a test set can be read from either side
        known = " and ".join(map(str, translator.bundle.directions))
        raise UserError(f"{folder} translates {known}: say which to measure with --direction")
    lines = evaluation.files(Path(args.src), [Path(ref) for ref in args.ref]) if args.src else None
    direction = translator.direction(args.direction, "\n".join(lines.sources[:1000]) if lines else "")
    if lines:
        test_set = lines
    elif args.corpus:
        corpus = CorpusConfig(path=args.corpus, name=args.name)
        test_set = evaluation.split_of_corpus(
            corpus, args.split, src=direction.src, tgt=direction.tgt, root=args.root
        )
    else:
        test_set = evaluation.split_of_run(folder.parent, args.split, direction)
    name = f"{test_set.name}-{direction}" if several else test_set.name
    output = Path(args.output) if args.output else folder.parent / "evaluation" / name
    search = dataclasses.replace(search_config(args, translator.bundle.search), n_best=1)
    progress = Progress(len(test_set.sources))
    scores = evaluation.evaluate(
        translator,
        test_set,
        output,
        search,
        direction=direction,
        batch_tokens=args.batch,
        progress=progress,
    )
    progress.finish()
    for score in scores.values():
        print(score)
    print(f"hypotheses, references, scores: {output}")


if __name__ == "__main__":
    open_door(main)
