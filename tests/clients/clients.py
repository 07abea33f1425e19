"""Use the server with real Python clients: python clients.py URL FOLDER

The model must translate both directions. FOLDER takes the files of this test.
"""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

URL, FOLDER = sys.argv[1].rstrip("/"), Path(sys.argv[2])
PO = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: en\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "你好"
msgstr ""

msgid "谢谢\\n"
msgstr ""

#, python-format
msgid "%s 再见"
msgid_plural "%d 再见"
msgstr[0] ""
msgstr[1] ""
"""


def libretranslatepy() -> None:
    from libretranslatepy import LibreTranslateAPI

    api = LibreTranslateAPI(f"{URL}/")
    assert api.translate("你好", "zh", "en") == "Hello"
    assert api.detect("你好")[0]["language"] == "zh-Hans"
    assert {"zh-Hans", "zh", "en"} <= {each["code"] for each in api.languages()}


def deep_translator() -> None:
    from deep_translator import LibreTranslator

    translator = LibreTranslator(source="zh", target="en", api_key="x", custom_url=f"{URL}/")
    assert translator.translate("你好") == "Hello"
    assert translator.translate_batch(["你好", "你好"]) == ["Hello", "Hello"]


def libretranslate_aio() -> None:
    from libretranslate_aio import AsyncLibreTranslate, BadRequestError, LibreTranslate

    source = FOLDER / "a.txt"
    source.write_text("你好\n", encoding="utf-8")

    async def use() -> None:
        async with AsyncLibreTranslate(URL) as client:
            every = await asyncio.gather(*(client.translate("你好", "auto", "en") for _ in range(20)))
            assert {each.translated_text for each in every} == {"Hello"}
            many = await client.translate(["你好", "你好"], "zh-Hans", "en", alternatives=2)
            assert many.translated_text == ["Hello", "Hello"], many
            assert (await client.translate_file(source, "zh", "en")).translated_file_url.startswith(URL)
            await client.frontend_settings()

    asyncio.run(use())
    with LibreTranslate(URL) as client:
        assert client.suggest("你好", "Hi", "zh", "en")
        assert {each.code for each in client.languages()} >= {"zh", "en"}
        message = "no error"
        try:
            client.translate("你好", "zz", "en")
        except BadRequestError as error:
            message = str(error)
        assert message == "zz is not supported"
    program = Path(sys.executable).with_name("libretranslate")
    command = [program, "--url", URL, "translate", "你好", "--source", "zh", "--target", "en"]
    assert "Hello" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def transpolibre() -> None:
    path = FOLDER / "en.po"
    path.write_text(PO, encoding="utf-8")
    program = Path(sys.executable).with_name("transpolibre")
    environment = os.environ | {"LT_URL": URL}
    command = [program, "-u", URL, "-s", "zh", "-t", "en", "-f", path]
    subprocess.run(command, capture_output=True, check=True, env=environment)
    text = path.read_text(encoding="utf-8")
    assert 'msgid "你好"\nmsgstr "Hello"' in text, text
    assert text.count('msgstr ""') == 1, text  # the header's


def thousand_connections() -> None:
    """Check for an answer, if only 429, beside 1,000 unfinished requests."""
    address = urlsplit(URL)
    half = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"

    def status(method: str, path: str) -> int:
        connection = HTTPConnection(address.netloc, timeout=60)
        connection.request(method, path)
        return connection.getresponse().status

    with ExitStack() as stack:
        for number in range(1000):
            client = stack.enter_context(socket.create_connection((address.hostname, address.port)))
            # Half of them end within the header.
            client.sendall(half[:30] if number % 2 else half)
        assert status("POST", "/translate?q=x&source=zh&target=en") in (200, 429)
    assert status("GET", "/health") == 200


if __name__ == "__main__":
    for client in (libretranslatepy, deep_translator, libretranslate_aio, transpolibre, thousand_connections):
        client()
        print(client.__name__, "works", flush=True)
