"""Command lines: dragoman-train, dragoman-translate, shared parts (cli.py)."""
