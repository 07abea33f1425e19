"""Requests and answers of LibreTranslate's interface.

Parameters of a POST come as JSON, form or query string. Errors are {"error": text}, in LibreTranslate's words.
"""

from typing import Annotated, Any, Literal

from fastapi import Request, UploadFile
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException

from dragoman.errors import UserError

MAX_BYTES = 2_000_000  # of a body
Text = Annotated[str, Field(min_length=1)]
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
_OBJECT = TypeAdapter(dict[str, Any])


class Detect(BaseModel):
    q: Text = Field(examples=["你好"])


class Languages(Detect):
    source: Text = Field(examples=["auto"], description="language code, or auto")
    target: Text = Field(examples=["en"])


class Translate(Languages):
    q: str | list[str] = Field(min_length=1, examples=["你好"])  # type: ignore[assignment]
    format: Literal["text", "html", ""] = "text"
    alternatives: int = Field(0, ge=0, le=9)


class Suggest(Languages):
    s: Text = Field(examples=["Hi"], description="the correct translation of q")


class Trace(Languages):
    beam: int = Field(1, ge=1, le=5, description="1 is greedy")


class Upload(Languages):
    file: UploadFile
    q: SkipJsonSchema[Text] = ""  # the text of the file; `parameters` sets it, and the address of this server
    base_url: SkipJsonSchema[str]


class Detected(BaseModel):
    confidence: float
    language: str


class Translated(BaseModel):
    translatedText: str | list[str]  # noqa: N815
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    warnings: list[str] | list[list[str]] | None = None


async def parameters(kind: type[BaseModel], request: Request, max_chars: int) -> Any:
    """Return the parameters of the query string and the body; the body wins."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_BYTES:
            raise HTTPException(413, f"Invalid request: the body exceeds {MAX_BYTES} bytes")
    request._body = bytes(received)  # for request.form()
    fields, content_type = _texts(request.query_params), request.headers.get("content-type", "").lower()
    if content_type.startswith(JSON):
        body = _OBJECT.validate_json(bytes(received) or b"{}")
        fields |= {name: value for name, value in body.items() if value is not None}
    elif content_type.startswith(MULTIPART):
        fields |= _texts(await request.form())
    else:
        # Not by request.form(), which takes unescaped UTF-8 for Latin-1.
        fields |= _texts(QueryParams(received.decode("utf-8", "replace")))
    file: Any = fields.get("file")
    if hasattr(file, "read"):
        try:
            fields["q"] = (await file.read()).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UserError("Invalid request: the file is not UTF-8") from None
    values: Any = kind.model_validate(fields | {"base_url": str(request.base_url)})
    n_chars = sum(len(text) or 1 for text in values.q) + len(getattr(values, "s", ""))  # q is a text or a list
    if n_chars > max_chars:
        raise UserError(f"Invalid request: request ({n_chars}) exceeds text limit ({max_chars})")
    return values


def problem(error: ValidationError) -> str:
    """Return LibreTranslate's words for the first error of a request."""
    first = error.errors()[0]
    if not first["loc"]:
        return "Invalid request: the body is not a JSON object"
    name, kind = first["loc"][0], first["type"]
    if kind.endswith(("missing", "too_short")):
        return f"Invalid request: missing {name} parameter"
    if kind == "literal_error":
        return f"{str(first['input'])[:40]} format is not supported"
    return f"Invalid request: {name} parameter: {first['msg']}"


def _texts(fields: QueryParams | FormData) -> dict[str, Any]:
    """Return name -> value; a repeated name has a list."""
    every = {name: fields.getlist(name) for name in fields}
    return {name: each if len(each) > 1 else each[0] for name, each in every.items()}
