"""Requests and answers of LibreTranslate's interface.

Parameters of a POST come as JSON, form or query string. Errors are {"error": text}, in LibreTranslate's words.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import FormData, QueryParams

MOST_ALTERNATIVES = 9
Text = Annotated[str, Field(min_length=1)]
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class Detect(BaseModel):
    q: Text = Field(examples=["你好"])
    api_key: str = ""


class Languages(Detect):
    source: Text = Field(examples=["auto"], description="language code, or auto")
    target: Text = Field(examples=["en"])


class Translate(Languages):
    q: Text | Annotated[list[str], Field(min_length=1)] = Field(examples=["你好"])  # type: ignore[assignment]
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, le=MOST_ALTERNATIVES)


class Suggest(Languages):
    s: Text = Field(examples=["Hi"], description="the correct translation of q")


class Trace(Languages):
    beam: int = Field(1, ge=1, le=5, description="1 is greedy")


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


Kind = TypeVar("Kind", bound=BaseModel)


def parse(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """Return the parameters as `kind`. Raises the error of the first wrong one."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise HTTPException(400, _message(error.errors(include_url=False)[0])) from None


async def values(request: Request) -> dict[str, Any]:
    """Return the parameters of the query string and the body; the body wins."""
    result = _texts(request.query_params)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == JSON:
        try:
            body = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError):
            raise HTTPException(400, "Invalid request: the body is not JSON") from None
        if not isinstance(body, dict):
            raise HTTPException(400, "Invalid request: the body is not a JSON object")
        return result | {name: value for name, value in body.items() if value is not None}
    if content_type == FORM:  # not by request.form(), which takes unescaped UTF-8 for Latin-1
        return result | _texts(QueryParams((await request.body()).decode("utf-8", "replace")))
    if content_type == "multipart/form-data":
        return result | _texts(await request.form(max_files=1, max_fields=10_000))
    return result


def documented(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of the three ways to send parameters."""
    schema = kind.model_json_schema()
    parameters = [{"name": name, "in": "query", "schema": each} for name, each in schema["properties"].items()]
    return {
        "parameters": parameters,
        "requestBody": {"content": {content_type: {"schema": schema} for content_type in (JSON, FORM)}},
    }


def uploaded() -> dict[str, Any]:
    """Return the OpenAPI description of /translate_file."""
    properties = {name: {"type": "string"} for name in ("source", "target")}
    properties["file"] = {"type": "string", "format": "binary"}
    schema = {"type": "object", "properties": properties, "required": ["file", "source", "target"]}
    return {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}


def _texts(fields: QueryParams | FormData) -> dict[str, Any]:
    """Return name -> value; a repeated name has a list."""
    every = {name: fields.getlist(name) for name in fields}
    return {name: each if len(each) > 1 else each[0] for name, each in every.items()}


def _message(error: Any) -> str:
    name, kind, limits = error["loc"][0], error["type"], error.get("ctx", {})
    if kind == "missing" or kind.endswith("too_short"):
        return f"Invalid request: missing {name} parameter"
    if kind == "literal_error":
        return f"{str(error['input'])[:40]} format is not supported"
    if kind.startswith("int_"):
        return f"Invalid request: {name} parameter is not a number"
    for limit, sign in (("le", "<="), ("ge", ">=")):
        if limit in limits:
            return f"Invalid request: {name} parameter must be {sign} {limits[limit]}"
    return f"Invalid request: {name} parameter is not valid"
