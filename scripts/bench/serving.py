"""Speed of the server: python scripts/bench/serving.py --model runs/zh_en

Starts the server, then measures one request with 500 sentences, 500 requests one after another, and 16 and 64
concurrent clients: latency (p50, p99), answers/s, empty answers. --also NAME=URL measures another server that is
running, with the same interface, in turns.
"""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tables import machine, markdown, phrasebook

from dragoman.commands.cli import Parser, command
from dragoman.errors import UserError

SERVER = Path(__file__).parents[1] / "serve.py"
SENTENCES, ROUNDS, CLIENTS = 500, 3, (1, 16, 64)
LOCAL = threading.local()


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a model from Chinese to English")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=URL", help="other servers, already running")
    args = parser.parse_args(argv)
    texts = list(dict.fromkeys(pair["zh"] for pair in phrasebook("train")))[:SENTENCES]
    with running_server(args.model) as url:
        urls = {"Dragoman": url, **dict(each.split("=", 1) for each in args.also)}
        turns = [{name: measure(address, texts) for name, address in urls.items()} for _ in range(ROUNDS)]
    columns = list(turns[0]["Dragoman"])
    rows = [[name, *(f"{median(turn[name][c] for turn in turns):,.4g}" for c in columns)] for name in urls]
    print(f"{machine()}\n\n{markdown(['server', *columns], rows)}", end="")


@contextlib.contextmanager
def running_server(model: str) -> Iterator[str]:
    """Start the server in a process of its own, yield its address, and stop it."""
    arguments = [sys.executable, str(SERVER), "--model", model, "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield next(line.strip() for line in process.stdout or [] if re.match("http", line))
        except StopIteration:
            raise UserError(f"{model}: the server did not start") from None
        finally:
            process.terminate()


def measure(url: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the measurements of one round."""
    connect(url)
    translate(texts[0])
    begin = time.perf_counter()
    translate(texts)
    record = {"list, s": time.perf_counter() - begin}
    empty = 0
    for n_clients in CLIENTS:
        begin = time.perf_counter()
        with ThreadPoolExecutor(n_clients, initializer=connect, initargs=(url,)) as pool:
            answers, times = zip(*pool.map(translate_timed, texts), strict=True)
        seconds = time.perf_counter() - begin
        if n_clients == 1:
            record |= {"one by one, s": seconds, "ratio": seconds / record["list, s"]}
        empty += sum(not answer.strip() for answer in answers)
        record |= {
            f"{n_clients}: p50, ms": median(times),
            f"{n_clients}: p99, ms": sorted(times)[int(0.99 * (len(times) - 1))],
            f"{n_clients}: answers/s": len(texts) / seconds,
        }
    return record | {"empty": empty}


def connect(url: str) -> None:
    """Give this thread a connection of its own."""
    LOCAL.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)


def translate(q: Any) -> Any:
    """Translate a text, or a list."""
    body = json.dumps({"q": q, "source": "zh", "target": "en"})
    LOCAL.connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    return json.loads(LOCAL.connection.getresponse().read())["translatedText"]


def translate_timed(text: str) -> tuple[str, float]:
    """Translate; return the answer and the milliseconds."""
    begin = time.perf_counter()
    return translate(text), 1000 * (time.perf_counter() - begin)


if __name__ == "__main__":
    sys.exit(main())
