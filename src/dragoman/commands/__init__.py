"""The commands dragoman-train and dragoman-translate, and what all command lines share (cli.py)."""
