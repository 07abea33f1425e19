"""Average checkpoints into a bundle: python scripts/average.py --run runs/zh_en --last 5 --output runs/mean/bundle

Takes the last snapshots of a run, or the bundles and checkpoints named; tokenizers and configuration come
from the run's bundle, or the first bundle named. The mean of neighbouring checkpoints often translates
better than any of them (Vaswani et al. 2017, section 6.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.doors import Parser, open_door
from dragoman.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def parser() -> Parser:
    parser = Parser("average.py", __doc__ or "")
    parser.add_argument("path", nargs="*", help="bundles, snapshots (.safetensors) or checkpoints (.ckpt)")
    parser.add_argument("--run", metavar="FOLDER", help="a run whose snapshots are averaged")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many of them (5)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="the new bundle")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle that is there")
    parser.add_argument("--half", action="store_true", help="store the weights as float16, half the size")
    return parser


def main() -> None:
    args = parser().parse()
    if not args.run and not args.path:
        raise UserError("nothing to average: name a run with --run, or the files")
    if args.run and args.last < 1:
        raise UserError(f"--last {args.last}: at least 1 snapshot is needed")
    if Path(args.output).exists() and not args.overwrite:
        raise UserError(f"{args.output} exists already and is left as it is; --overwrite replaces it")
    from dragoman import bundle

    paths = [Path(path) for path in args.path]
    if args.run:
        paths += sorted(Path(args.run, "snapshots").glob("step-*.safetensors"))[-args.last :]
        if not paths:
            raise UserError(f"{args.run} has no snapshots to average")
    first_bundle = next((path for path in paths if path.is_dir()), None)
    if not args.run and first_bundle is None:
        raise UserError("which model is it? name its run with --run, or a bundle among the files")
    made = bundle.load(args.run or str(first_bundle))
    shapes = {name: list(parameter.shape) for name, parameter in made.model.named_parameters()}
    mean = bundle.average(weights(path, shapes) for path in paths)
    made.model.load_state_dict(mean, strict=False)  # tied parameters are there under their first name
    made.meta.pop("validation", None)  # measured on other weights
    made.meta["average_of"] = [path.name for path in paths]
    bundle.save(made, args.output, dtype="float16" if args.half else "float32")
    print(f"the mean of {len(paths)}: {args.output}")


def weights(path: Path, shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """The parameters named in `shapes` from a bundle, a snapshot or a checkpoint of training."""
    from dragoman import bundle, untrusted

    if path.is_dir():
        parameters = {name: weight.detach() for name, weight in bundle.load(path).model.named_parameters()}
    elif path.suffix == ".safetensors":
        return untrusted.read_weights(path, shapes)
    else:
        parameters = _of_checkpoint(path)
    if any(name not in parameters or list(parameters[name].shape) != shape for name, shape in shapes.items()):
        raise UserError(f"{path} belongs to a model of another shape")
    return {name: parameters[name] for name in shapes}


def _of_checkpoint(path: Path) -> dict[str, Tensor]:
    """Of the moving average where the run kept one, since that is what it would have shipped."""
    from torch import Tensor

    from dragoman import untrusted

    saved = untrusted.read_archive(path)
    state = saved.get("state_dict") if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} is not a checkpoint of training: it holds no weights")
    prefix = "averaged." if any(name.startswith("averaged.") for name in state) else "model."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


if __name__ == "__main__":
    open_door(main)
