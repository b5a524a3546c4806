"""From a checked body to what the engine is asked for. These functions compute, so they run outside the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspec.engine import Drafting, Settings
from pyspec.llama.grammar import Grammar
from pyspec.server import tools
from pyspec.server.bodies.chat import ChatBody, Message
from pyspec.server.bodies.generation import GenerationFields, Speculative
from pyspec.server.bodies.sampling import sampling_config, with_seed
from pyspec.server.bodies.text import CompletionBody, LlamaCompletionBody
from pyspec.server.errors import ApiError, invalid, unsupported
from pyspec.server.generating import Job
from pyspec.server.reading import parsed
from pyspec.server.service import Service


def completion_jobs(service: Service, body: CompletionBody) -> list[Job]:
    """Return the jobs of ``/v1/completions``: ``n`` for each prompt.

    Raises:
        ApiError: The request is wrong.
        PyspecError: A value in it is.
    """
    if body.suffix:
        raise unsupported("suffix is not supported.")
    if body.best_of not in (None, body.n or 1):
        raise invalid("best_of is not supported unless it equals n.", param="best_of")
    if body.echo and body.logprobs is not None:
        raise invalid("echo cannot be used with logprobs: those of the prompt are not known.", param="echo")
    texts = separated(body.prompt, "prompt")
    _require_few(service, len(texts) * (body.n or 1))
    prompts = [tokens_of(service, text, "prompt") for text in texts]
    settings = _settings(service, body, body.max_tokens, body.grammars())
    if body.logprobs is not None:
        settings.update({"logprobs": True, "n_top": body.logprobs})
    return _jobs(service, prompts, settings, body.n or 1)


def separated(given: str | list[int] | list[str] | list[list[int]], name: str) -> Sequence[str | Sequence[int]]:
    """Return what was given in any of OpenAI's forms as a list: text, token ids, or several of either.

    Raises:
        ApiError: It is empty; ``name`` is its field.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(f"{name} is empty.", param=name)
    return [given] if isinstance(given[0], int) else given


def tokens_of(service: Service, text: str | Sequence[int], name: str) -> list[int]:
    """Return a text or token ids as tokens.

    Raises:
        ApiError: It is empty or too long; ``name`` is its field.
    """
    tokens = _tokens(service, [text] if isinstance(text, str) else text)
    _require_fitting(service, tokens, name)
    return tokens


def chat_jobs(service: Service, body: ChatBody) -> list[Job]:
    """Return the jobs of ``/v1/chat/completions``.

    Raises:
        ApiError: The request is wrong.
        PyspecError: A value in it is.
    """
    grammars = body.grammars()
    forced = tools.forced(body)
    if forced:
        if grammars:
            raise invalid("A call is demanded, so the output cannot have another form.", param="tool_choice")
        grammars = [tools.call_grammar(forced)]
    _require_few(service, body.n or 1)
    settings = _settings(service, body, body.limit(), grammars)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs.", param="top_logprobs")
    if body.logprobs:
        settings.update({"logprobs": True, "n_top": body.top_logprobs or 0})
    prompt = chat_prompt(service, body, forced or tools.offered(body))
    return _jobs(service, [prompt], settings, body.n or 1)


def chat_prompt(service: Service, body: ChatBody, offered: Sequence[dict[str, Any]]) -> list[int]:
    """Return a conversation as tokens."""
    return service.speech.tokens(chat_text(service, body, offered))


def chat_text(service: Service, body: ChatBody, offered: Sequence[dict[str, Any]]) -> str:
    """Return a conversation as text, with names of control tokens in messages marked; see ``Speech``."""
    template, speech = service.template, service.speech
    if template is None:
        raise unsupported("The model has no chat template; the server can be started with one (--chat-template-file).")
    _require_short(service, sum(_length(message) for message in body.messages))
    messages = speech.marked([_message(message) for message in body.messages])
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    begins = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    if begins and body.continue_final_message:
        raise invalid("continue_final_message and add_generation_prompt exclude each other.", param="messages")
    text = template.render(messages, speech.marked(list(offered)), variables=variables, begins_answer=begins)
    if body.continue_final_message:
        text = _up_to(text, str(messages[-1]["content"] or "").strip())
    _require_short(service, len(text))
    return text


def _length(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)


def _message(message: Message) -> dict[str, Any]:
    """Return a message as templates expect it."""
    plain = message.model_dump(exclude_unset=True)
    plain["role"] = "system" if message.role == "developer" else message.role
    plain["content"] = None
    if message.content is not None:
        parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
        plain["content"] = "\n".join(parts)
    if message.tool_calls:
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object."""
    arguments = call["function"].get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed_arguments(arguments)
    return {**call, "type": "function", "function": {**call["function"], "arguments": arguments}}


def _parsed_arguments(text: str) -> object:
    """Return a call's arguments as JSON; text that is none stays text, because a model may have written it."""
    try:
        return parsed(text.encode() or b"{}")
    except ApiError:
        return text


def _up_to(text: str, end: str) -> str:
    """Return a rendered conversation up to the end of its last message."""
    at = text.rfind(end)
    if at < 0:
        raise invalid("The chat template changes the last message, so that it cannot be continued.", param="messages")
    return text[: at + len(end)]


def llama_job(service: Service, body: LlamaCompletionBody) -> Job:
    """Return the job of ``/completion``.

    Raises:
        ApiError: The request is wrong.
        PyspecError: A value in it is.
    """
    if body.post_sampling_probs:
        raise unsupported("post_sampling_probs is not supported; probabilities are the model's own.")
    n_keep = service.engine.n_keep
    if n_keep is not None and body.n_keep not in (None, n_keep):
        raise invalid(f"n_keep is {n_keep} for all requests to this server.", param="n_keep")
    limit = body.n_predict if body.n_predict is not None else body.max_tokens
    settings = _settings(service, body, limit, body.grammars())
    if body.n_probs:
        settings.update({"logprobs": True, "n_top": body.n_probs})
    parts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(parts) > 1 and all(isinstance(part, str) for part in parts):
        raise invalid("Several prompts are not supported here; /v1/completions takes them.", param="prompt")
    return _jobs(service, [_tokens(service, parts)], settings, 1)[0]


def _settings(
    service: Service, body: GenerationFields, max_tokens: int | None, grammars: Sequence[Grammar]
) -> Settings:
    """Return what all kinds of requests have in common."""
    vocab = service.engine.model.vocab
    if len(grammars) > 1:
        raise invalid("The output can have one form; two are given, such as grammar and response_format.")
    settings: Settings = {
        "max_tokens": service.settings.max_tokens if max_tokens is None else None if max_tokens < 0 else max_tokens,
        "sampling": sampling_config(body, service.settings.sampling, vocab),
        "stop": body.stops(),
        "priority": body.priority,
        "timeout": service.settings.timeout,  # the engine ends what waits too long, whoever watches
    }
    if body.stop_token_ids:
        settings["stop_tokens"] = body.stop_token_ids
    if body.min_tokens:
        if settings["stop"]:
            raise invalid("min_tokens cannot be used with stop; stop_token_ids can be.", param="min_tokens")
        settings["min_tokens"] = body.min_tokens
    for grammar in grammars:
        settings["grammar"] = grammar
    wanted = body.speculation()
    if wanted is not None:
        settings.update({"rule": wanted.rule, "drafting": _drafting(wanted)})
    return settings


def _drafting(wanted: Speculative) -> Drafting:
    off = wanted.off or wanted.types in ("none", ["none"])
    if off and wanted.types not in (None, "none", ["none"]):
        raise invalid("speculative.off and speculative.types exclude each other.", param="speculative")
    types = () if off else wanted.types
    return Drafting(types=types, n_max=wanted.n_max, n_min=wanted.n_min, p_min=wanted.p_min)


def _require_few(service: Service, n: int) -> None:
    most = service.settings.max_choices
    if n > most:
        raise invalid(f"{n} answers are asked for; at most {most} are given at once.", param="n")


def _tokens(service: Service, parts: Sequence[str | int]) -> list[int]:
    _require_short(service, sum(len(part) if isinstance(part, str) else 1 for part in parts))
    return service.speech.joined(parts)


def _require_short(service: Service, length: int) -> None:
    """Refuse a text that cannot fit before it is made into tokens, which takes minutes for the longest."""
    tokens = service.max_prompt_tokens
    if length > tokens * service.speech.longest:
        raise _too_long(f"The prompt has a length of {length}; this server takes at most {tokens} tokens.")


def _too_long(message: str) -> ApiError:
    return invalid(message, code="context_length_exceeded")


def _require_fitting(service: Service, tokens: Sequence[int], name: str) -> None:
    most = service.max_prompt_tokens
    if not tokens:
        raise invalid(f"The {name} is empty; give at least one token.", param=name)
    if len(tokens) > most:
        raise _too_long(f"The {name} has {len(tokens)} tokens; this server takes at most {most}.")


def _jobs(service: Service, prompts: Sequence[Sequence[int]], settings: Settings, n: int) -> list[Job]:
    for prompt in prompts:
        _require_fitting(service, prompt, "prompt")
    sampling = settings.get("sampling") or service.settings.sampling
    return [Job(prompt, {**settings, "sampling": with_seed(sampling, i)}) for prompt in prompts for i in range(n)]
