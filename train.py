"""Train a translation model: python train.py experiment=zh_en [any.key=value ...]

Every setting and its value:           python train.py experiment=zh_en --cfg job
How long it will take, how much memory: python train.py experiment=zh_en preflight=true
"""

import os
import sys

from dragoman.training.signals import stop_at_once

if __name__ == "__main__":  # and not in a worker process, which imports this file where there is no fork
    stop_at_once()  # before what takes seconds to load

from dragoman.doors import open_door
from dragoman.experiments import CONFIGS, settings


def main() -> None:
    given = settings(sys.argv[1:])  # first, because what comes now takes seconds to load
    import hydra
    from omegaconf import DictConfig

    from dragoman.config import check, to_config
    from dragoman.errors import plain_errors
    from dragoman.training.fit import fit
    from dragoman.training.preflight import preflight
    from dragoman.training.signals import Stopped

    check(given)

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
    def train(composed: DictConfig) -> None:
        with plain_errors():  # here, or Hydra would print a traceback
            try:
                config = to_config(composed)
                (preflight if config.preflight else fit)(config)
            except Stopped as stopped:
                if os.environ.get("LOCAL_RANK", "0") == "0":  # said once, however many train together
                    saved = f" and saved in {stopped.path}" if stopped.path else ", and nothing is lost"
                    print(f"stopped{saved}; the same command goes on from there", file=sys.stderr)
                sys.exit(128 + stopped.signum)

    train()


if __name__ == "__main__":
    open_door(main)
