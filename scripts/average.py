"""Average weights: python scripts/average.py --run runs/zh_en --output mean

Takes the last snapshots of a run, and the bundles and snapshots named; tokenizers and configuration come from the run's
bundle, or the first bundle named. The mean of neighbouring snapshots often translates better than any of them
(Vaswani et al. 2017, section 6.1). One bundle with --half is the same model at half the size.
"""

import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman import bundle
from dragoman.commands import cli
from dragoman.errors import UserError


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("path", nargs="*", help="bundles, or snapshots (.safetensors)")
    parser.add_argument("--run", metavar="FOLDER", help="a run whose snapshots are averaged")
    parser.add_argument("--last", type=cli.positive, default=5, metavar="N", help="how many of them (5)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new bundle")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle that is there")
    parser.add_argument("--half", action="store_true", help="store the weights as float16, half the size")
    args = parser.parse_args(argv)
    if Path(args.output).exists() and not args.overwrite:
        raise UserError(f"{args.output}: exists already. Use --overwrite to replace it, or name another path")
    paths = [Path(path) for path in args.path]
    if args.run:
        paths += sorted(Path(args.run, "snapshots").glob("step-*.safetensors"))[-args.last :]
    if not paths:
        raise UserError("--run: nothing to average. Name a run that has snapshots, or bundles and snapshots")
    source = args.run or next((path for path in paths if path.is_dir()), None)
    if source is None:
        raise UserError(f"{paths[0]}: no configuration there. Name its run with --run, or a bundle")
    result = bundle.load(source)
    shapes = {name: tensor.shape for name, tensor in result.model.named_parameters()}
    checkpoints = [(path, weights(path)) for path in paths]
    for path, tensors in checkpoints:
        same = not path.is_dir() or bundle.load_info(path).src_tokenizer.sha256 == result.src_tokenizer.sha256
        if not same or {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise UserError(f"{path}: of another model than {source}. Use files of one run")
    mean = {name: torch.stack([each[name].double() for _, each in checkpoints]).mean(0) for name in shapes}
    result.model.load_state_dict(mean, strict=False)  # tied parameters appear under their first name
    if paths != [Path(source)]:
        result.meta.pop("validation", None)  # the scores of other weights
        result.meta["average_of"] = list(map(str, paths))
    bundle.save(result, args.output, dtype="float16" if args.half else "float32")
    print(f"the mean of {len(paths)}: {args.output}")


def weights(path: Path) -> dict[str, Tensor]:
    """Return the parameters (tensors) of a bundle or a snapshot."""
    if path.is_dir():
        return dict(bundle.load(path).model.requires_grad_(False).named_parameters())
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: no weights of a model ({error}). Name a bundle or a .safetensors file") from None


if __name__ == "__main__":
    sys.exit(main())
