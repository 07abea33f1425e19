"""Translate text: python translate.py "好久不见" """

import sys

from dragoman.commands.translate import main

if __name__ == "__main__":
    sys.exit(main())
