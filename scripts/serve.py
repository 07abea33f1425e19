"""Serve models by HTTP: python scripts/serve.py --model runs/zh_en

Open the address that it prints: a page that translates. Programs use the interface of LibreTranslate: /translate,
/detect, /languages and others; /openapi.json describes them. A better bundle of a running training replaces the model
at once. Corrections sent to /suggest are kept in a JSONL file for training. Ctrl-C stops after the last answer.
"""

import signal
import socket
import sys
import time
from pathlib import Path
from threading import Thread

from dragoman.bundle import MANIFEST, included, load_info, locate, newest
from dragoman.commands import cli
from dragoman.errors import UserError


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", nargs="+", metavar="FOLDER", help="bundles, runs (the newest, and pretrained ones)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=5000, help="0 takes a free one (5000)")
    parser.add_argument("--beam", type=cli.positive, metavar="N", help="1: greedy; page: 4 or more (the bundle's)")
    parser.add_argument("--suggestions", default="runs/suggestions.jsonl", metavar="FILE", help="where corrections go")
    parser.add_argument("--max-chars", type=cli.positive, default=50_000, metavar="N", help="of a request (50000)")
    args = parser.parse_args(argv)
    try:
        listener = socket.create_server((args.host, args.port), backlog=2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {args.port}: cannot listen on {args.host} ({error}). Name another port") from None
    # Connections inherit it; without it, answers wait. asyncio sets it only on sockets that it made.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    import python_multipart  # noqa: F401  # uploads need it
    import uvicorn

    from dragoman.serve.app import create_app
    from dragoman.serve.models import Model, watch

    folders = [Path(folder) for folder in args.model or [newest(Path("runs"), lambda direction: True)]]
    if not args.model:
        known = set(load_info(folders[0]).directions)
        folders += [each for each in included() if known.isdisjoint(load_info(each).directions)]
    for folder in folders:
        wait_for_bundle(folder)
    models = [Model(folder) for folder in folders]
    app = create_app(models, Path(args.suggestions), args.max_chars, args.beam)
    Thread(target=watch, args=[models], daemon=True).start()
    for model in models:
        print(f"model: {model.folder} ({', '.join(model.status['directions'])}; {model.status['engine']})")
    print("http://{}:{}".format(*listener.getsockname()), flush=True)
    # uvicorn repeats a signal when the last request is finished; SIGTERM would then end Python at once.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=30)
    uvicorn.Server(config).run(sockets=[listener])


def wait_for_bundle(run: Path) -> None:
    """Wait for the first validation of a training that has just begun."""
    if (run / "config.yaml").exists() and not locate(run).joinpath(MANIFEST).exists():
        print(f"{run}: waiting for the first validation of its training (Ctrl-C stops)", flush=True)
        while run.exists() and not locate(run).joinpath(MANIFEST).exists():
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
