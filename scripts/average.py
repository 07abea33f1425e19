"""Average checkpoints into a bundle: python scripts/average.py --run runs/zh_en --last 5 --output runs/mean/bundle

Takes the last snapshots of a run, or the bundles and checkpoints named; tokenizers and configuration come from the
run's bundle, or the first bundle named. The mean of neighbouring checkpoints often translates better than any of them
(Vaswani et al. 2017, section 6.1). One bundle with --half is the same model at half the size.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import bundle
from dragoman.commands import cli
from dragoman.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def parser() -> cli.Parser:
    parser = cli.Parser(__doc__)
    parser.add_argument("path", nargs="*", help="bundles, snapshots (.safetensors) or checkpoints (.ckpt)")
    parser.add_argument("--run", metavar="FOLDER", help="a run whose snapshots are averaged")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many of them (5)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new bundle")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle that is there")
    parser.add_argument("--half", action="store_true", help="store the weights as float16, half the size")
    return parser


@cli.command
def main(argv: list[str]) -> None:
    args = parser().parse(argv)
    if not args.run and not args.path:
        raise UserError("nothing to average: name a run with --run, or the files")
    cli.check_at_least_one(args, "last")
    if Path(args.output).exists() and not args.overwrite:
        raise UserError(f"{args.output} exists already and is left as it is; --overwrite replaces it")
    paths = [Path(path) for path in args.path]
    if args.run:
        paths += sorted(Path(args.run, "snapshots").glob("step-*.safetensors"))[-args.last :]
        if not paths:
            raise UserError(f"{args.run} has no snapshots to average")
    source = args.run or next((path for path in paths if path.is_dir()), None)
    if source is None:
        raise UserError("the files have no configuration: name a run with --run, or a bundle among them")
    result = bundle.load(source)
    names = [name for name, _ in result.model.named_parameters()]
    mean = bundle.average(weights(path, names) for path in paths)
    try:
        result.model.load_state_dict(mean, strict=False)  # tied parameters appear under their first name
    except RuntimeError:
        raise UserError(f"{paths[0]} belongs to a model of another shape") from None
    if len(paths) > 1:
        result.meta.pop("validation", None)  # the scores of other weights
        result.meta["average_of"] = [path.name for path in paths]
    bundle.save(result, args.output, dtype="float16" if args.half else "float32")
    print(f"the mean of {len(paths)}: {args.output}")


def weights(path: Path, names: list[str]) -> dict[str, Tensor]:
    """Return the parameters called `names` from a bundle, a snapshot, or a checkpoint of training."""
    import torch
    from safetensors.torch import load_file

    state: dict[str, Tensor]
    try:
        if path.is_dir():
            state = {f"model.{name}": weight for name, weight in bundle.load(path).model.named_parameters()}
        elif path.suffix == ".safetensors":
            state = {f"model.{name}": weight for name, weight in load_file(path).items()}
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:  # each format has errors of its own
        raise UserError(f"{path}: no weights of a model ({str(error)[:80]})") from None
    # The moving average, where a checkpoint has one: it is what bundles hold.
    prefix = "averaged." if any(name.startswith("averaged.") for name in state) else "model."
    if missing := [name for name in names if prefix + name not in state]:
        raise UserError(f"{path} belongs to another model: it has no {missing[0]}")
    return {name: state[prefix + name].detach() for name in names}


if __name__ == "__main__":
    sys.exit(main())
