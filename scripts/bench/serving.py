"""Speed of the server: python scripts/bench/serving.py --model runs/zh_en

Starts the server, then measures a list of 500 sentences beside 500 requests one by one, and clients at once: time to an
answer (p50, p99), answers a second, answers unlike the earlier ones of a sentence, empty ones. --also NAME=URL measures
another server with the same interface that runs already; the servers take turns.
"""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tables import machine, markdown
from texts import phrasebook

from dragoman.commands.cli import Parser, command
from dragoman.errors import UserError

SERVER = Path(__file__).parents[1] / "serve.py"
SENTENCES, ROUNDS, CLIENTS = 500, 3, (1, 16, 64)


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a model from Chinese to English")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=URL", help="other servers, already running")
    args = parser.parse(argv)
    texts = list(dict.fromkeys(pair["zh"] for pair in phrasebook("train")))[:SENTENCES]
    with served(args.model) as url:
        urls = {"Dragoman": url, **dict(each.split("=", 1) for each in args.also)}
        turns = [{name: measure(address, texts) for name, address in urls.items()} for _ in range(ROUNDS)]
    columns = list(turns[0]["Dragoman"])
    rows = [[name, *(f"{median(turn[name][c] for turn in turns):,.4g}" for c in columns)] for name in urls]
    print(f"{machine()}\n\n{markdown(['server', *columns], rows)}", end="")


@contextlib.contextmanager
def served(model: str) -> Iterator[str]:
    """Start the server in a process of its own, yield its address, and stop it."""
    arguments = [sys.executable, str(SERVER), "--model", model, "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        address = next((line.strip() for line in process.stdout or [] if re.match("http", line)), None)
        try:
            if address is None:
                raise UserError(f"{model}: the server did not start")
            yield address
        finally:
            process.terminate()


def measure(url: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the measurements of one turn."""
    translate = client(url)
    translate(texts[0])
    begin = time.perf_counter()
    together = translate(texts)
    of_list = time.perf_counter() - begin
    begin = time.perf_counter()
    alone = [translate(text) for text in texts]
    one_by_one = time.perf_counter() - begin
    record = {"list, s": of_list, "one by one, s": one_by_one, "ratio": one_by_one / of_list}
    wrong = empty = 0
    for n_clients in CLIENTS:
        shares = [range(k, len(texts), n_clients) for k in range(n_clients)]
        begin = time.perf_counter()
        with ThreadPoolExecutor(n_clients) as pool:
            answers = [each for share in pool.map(lambda share: timed(url, texts, share), shares) for each in share]
        seconds = time.perf_counter() - begin
        wrong += sum(answer not in (alone[i], together[i]) for i, answer, _ in answers)
        empty += sum(not answer.strip() for _, answer, _ in answers)
        times = sorted(1000 * spent for _, _, spent in answers)
        record |= {
            f"{n_clients}: p50, ms": median(times),
            f"{n_clients}: p99, ms": times[int(0.99 * (len(times) - 1))],
            f"{n_clients}: answers/s": len(texts) / seconds,
        }
    return record | {"different": wrong, "empty": empty}


def timed(url: str, texts: Sequence[str], share: Sequence[int]) -> list[tuple[int, str, float]]:
    """Translate a client's share one by one; return places, answers and seconds."""
    translate, results = client(url), []
    for i in share:
        begin = time.perf_counter()
        results.append((i, translate(texts[i]), time.perf_counter() - begin))
    return results


def client(url: str) -> Callable[[Any], Any]:
    """Return a function that translates a text, or a list, over one connection."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)

    def translate(q: Any) -> Any:
        body = json.dumps({"q": q, "source": "zh", "target": "en"})
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())["translatedText"]

    return translate


if __name__ == "__main__":
    sys.exit(main())
