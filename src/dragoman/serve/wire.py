"""Requests and answers of LibreTranslate's interface.

Parameters of a POST come as JSON, form or query string. Errors are {"error": text}, in LibreTranslate's words.
"""

from typing import Annotated, Any, Literal

from fastapi import Request, UploadFile
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Message

MOST_BYTES = 2_000_000  # of a body
Text = Annotated[str, Field(min_length=1)]
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
_OBJECT = TypeAdapter(dict[str, Any])


class Detect(BaseModel):
    q: Text = Field(examples=["你好"])
    api_key: str = ""

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class Languages(Detect):
    source: Text = Field(examples=["auto"], description="language code, or auto")
    target: Text = Field(examples=["en"])


class Translate(Languages):
    q: Text | Annotated[list[str], Field(min_length=1)] = Field(examples=["你好"])  # type: ignore[assignment]
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, le=9)


class Suggest(Languages):
    s: Text = Field(examples=["Hi"], description="the correct translation of q")


class Trace(Languages):
    beam: int = Field(1, ge=1, le=5, description="1 is greedy")


class Upload(BaseModel):
    file: UploadFile
    source: Text
    target: Text


class Error(BaseModel):
    error: str


class Detected(BaseModel):
    confidence: float
    language: str


class Translated(BaseModel):
    translatedText: str | list[str]  # noqa: N815
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    warnings: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


async def values(request: Request) -> dict[str, Any]:
    """Return the parameters of the query string and the body; the body wins."""
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > MOST_BYTES:
            raise HTTPException(413, f"Invalid request: the body exceeds {MOST_BYTES} bytes")

    async def again() -> Message:
        return {"type": "http.request", "body": bytes(received)}

    result, content_type = _texts(request.query_params), request.headers.get("content-type", "").lower()
    if content_type.startswith(JSON):
        body = _OBJECT.validate_json(received or b"{}")
        return result | {name: value for name, value in body.items() if value is not None}
    if content_type.startswith(MULTIPART):
        return result | _texts(await Request(request.scope, again).form())
    # Not by request.form(), which takes unescaped UTF-8 for Latin-1.
    return result | _texts(QueryParams(received.decode("utf-8", "replace")))


def documented(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of the ways to send parameters."""
    schema = kind.model_json_schema()
    if kind is Upload:
        return {"requestBody": {"content": {MULTIPART: {"schema": schema}}}}
    parameters = [{"name": name, "in": "query", "schema": each} for name, each in schema["properties"].items()]
    return {"parameters": parameters, "requestBody": {"content": {each: {"schema": schema} for each in (JSON, FORM)}}}


def problem(error: ValidationError) -> str:
    """Return LibreTranslate's words for the first error of a request."""
    first = error.errors()[0]
    kind, name = first["type"], first["loc"][:1]
    if not name:
        return "Invalid request: the body is not a JSON object"
    if any(each["type"].endswith(("missing", "too_short")) for each in error.errors() if each["loc"][:1] == name):
        return f"Invalid request: missing {name[0]} parameter"
    if kind == "literal_error":
        return f"{str(first['input'])[:40]} format is not supported"
    if kind.startswith("int_"):
        return f"Invalid request: {name[0]} parameter is not a number"
    if kind == "less_than_equal":
        return f"Invalid request: {name[0]} parameter must be <= {first['ctx']['le']}"
    return f"Invalid request: {name[0]} parameter is not valid"


def _texts(fields: QueryParams | FormData) -> dict[str, Any]:
    """Return name -> value; a repeated name has a list."""
    every = {name: fields.getlist(name) for name in fields}
    return {name: each if len(each) > 1 else each[0] for name, each in every.items()}
