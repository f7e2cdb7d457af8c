"""The bodies of requests: OpenAI's parameters, those that vLLM adds, and ours under `draftproof`.

Whatever is not written here is refused by name, and so is every parameter that is `Unsupported`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _refuse(value: Any) -> None:
    if value not in (None, [], {}, False):
        raise PydanticCustomError("unsupported", "this parameter is not supported: leave it out")


def _check_order(names: list[str]) -> list[str]:
    if names != ORDER:
        raise PydanticCustomError("order", f"controls apply in the order {', '.join(ORDER)}: leave it out")
    return names


Unsupported = Annotated[None, BeforeValidator(_refuse)]  # known to OpenAI's interface; accepted where it asks nothing
Count = Annotated[int, Field(ge=1)]
ORDER = ["penalties", "temperature", "top_k", "top_p", "min_p"]  # in which our controls apply, by llama.cpp's names
TOP = 20  # most alternatives that may be reported for a token
# every step looks at these for every token, and one client must not slow the others
StopText = Annotated[str, Field(max_length=1000)]
StopTexts = Annotated[list[StopText], Field(max_length=16)]
TokenIds = Annotated[list[int], Field(max_length=1024)]
Bias = Annotated[dict[str, float], Field(max_length=1024)]
JsonSchema = dict[str, Any]
Choices = Annotated[list[str], Field(min_length=1, max_length=1024)]


class Body(BaseModel):
    """What all parts of a request have in common: unknown names, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One message of a conversation; fields beside role and content reach the model's chat template."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None


class PredictedContent(Body):
    """OpenAI's predicted output: text that the answer is expected to be much like."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Unsupported = None


class NamedSchema(Body):
    """A JSON schema as OpenAI's clients send it; the answer is valid by it, whether or not it is said to be strict."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way to say what form the text has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(Body):
    """vLLM's way to say what form the text has: one of these."""

    json_: Annotated[JsonSchema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: Annotated[str | None, Field(description="a Lark grammar")] = None
    json_object: bool | None = None
    structural_tag: Unsupported = None
    whitespace_pattern: Unsupported = None
    disable_any_whitespace: Unsupported = None
    disable_additional_properties: Unsupported = None
    disable_fallback: bool | None = None  # there is no other engine to fall back to


class Speculation(Body):
    """How this request is drafted and verified; None leaves it to the server."""

    draft: Annotated[str | None, Field(description="auto, head, ngram, cache, none, or several with |")] = None
    verify: Annotated[str | None, Field(description="a rule of `draftproof list`")] = None
    tree: Annotated[str | None, Field(description="the shape of the draft, such as chain:5")] = None
    speculate: Annotated[bool, Field(description="false: plain sampling")] = True
    details: Annotated[bool, Field(description="report every token and step")] = False


class TextBody(Body):
    """What both endpoints take."""

    model: str | None = None
    n: Count | None = None
    stop: StopText | StopTexts | None = None
    seed: int | None = None
    logit_bias: Bias | None = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedContent | None = None
    # of vLLM and llama.cpp
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: Annotated[bool | None, Field(description="logprobs name tokens token_id:ID")] = None
    samplers: Annotated[list[str], AfterValidator(_check_order)] | None = None
    skip_special_tokens: Literal[True] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | str | None = None  # older names of the same
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    draftproof: Speculation | None = None
    # accepted, without effect
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Unsupported = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionBody(TextBody):
    """POST /v1/completions"""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    best_of: Count | None = None
    echo: bool | None = None
    add_special_tokens: bool = True
    suffix: Unsupported = None


class ChatBody(TextBody):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    modalities: list[Literal["text"]] | None = None
    tool_choice: Literal["none", "auto"] | None = None  # without tools both mean: none
    tools: Unsupported = None
    parallel_tool_calls: bool | None = None  # without tools there is none to call
    functions: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None


class TokenizeBody(Body):
    """POST /tokenize: a prompt or messages, as vLLM has it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[int]
