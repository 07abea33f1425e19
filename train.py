"""Train a translation model: python train.py experiment=zh_en [key=value ...]"""

import sys

from dragoman.commands.train import main

if __name__ == "__main__":  # worker processes import this file where there is no fork
    sys.exit(main())
