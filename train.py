"""Train a translation model: python train.py experiment=zh_en [any.key=value ...]

Every setting and its value: python train.py experiment=zh_en --cfg job
"""

import sys

import hydra
from omegaconf import DictConfig

from dragoman.config import CONFIGS, check, to_config
from dragoman.errors import plain_errors
from dragoman.training.checkpoint import Stopped
from dragoman.training.fit import fit


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def main(composed: DictConfig) -> None:
    with plain_errors():
        try:
            fit(to_config(composed))
        except Stopped as stopped:
            print(
                f"stopped and saved in {stopped.path}; the same command goes on from there", file=sys.stderr
            )
            sys.exit(128 + stopped.signum)


if __name__ == "__main__":
    with plain_errors():
        check([argument for argument in sys.argv[1:] if "=" in argument and not argument.startswith("-")])
    main()
