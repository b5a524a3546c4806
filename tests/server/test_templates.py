"""Chat templates: tried at the start, rendered in a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.errors import ConfigError
from pyspec.server import ServerSettings
from pyspec.server.app import make_service
from pyspec.server.errors import ApiError
from pyspec.server.templates import ChatTemplate
from tests.server.asgi import Client
from tests.server.conftest import Start
from tests.server.fakes import CHATML, FakeEngine, as_served

USER = {"role": "user", "content": "Hi"}
ALL = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def rendered(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages or (USER,), **options)


# At the start


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{% for m in messages %}{{ m.content }}", "broken"),
        ("{{ messages[0].content", "broken"),
        ("{{ nothing.at.all }}{{ messages }}", "fails"),
        ("{{ 1 / 0 }}", "fails"),
        ("{{ raise_exception('no') }}", "fails on a simple conversation: no"),
        ("always the same", "leaves out"),
    ],
)
def test_a_broken_template_is_an_error_at_the_start(source: str, what: str) -> None:
    engine = FakeEngine(template=source)
    with pytest.raises(ConfigError, match=what) as caught:
        make_service(as_served(engine))
    assert "fake.gguf" in str(caught.value)
    assert "--chat-template-file" in str(caught.value)
    assert make_service(as_served(engine), ServerSettings(chat_template="none")).template is None
    assert make_service(as_served(engine), ServerSettings(chat_template=CHATML)).template is not None


def test_an_error_of_a_given_template_says_whose_it_is() -> None:
    with pytest.raises(ConfigError, match="given with --chat-template"):
        make_service(as_served(FakeEngine()), ServerSettings(chat_template="{% if %}"))


def test_without_a_template_the_rest_works() -> None:
    from pyspec.server.app import create_app

    client = Client(create_app(make_service(as_served(FakeEngine(template=None)))))
    assert client.send("/v1/completions", {"prompt": "Hi"}).status == 200
    answer = client.send("/v1/chat/completions", {"messages": [USER]})
    assert (answer.status, answer.error["code"]) == (501, "not_supported")


# The sandbox


@pytest.mark.parametrize(
    "evil",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['dt'] }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ '%s' | format(messages) | attr('__class__') }}",
        "{% for i in range(1000000) %}x{% endfor %}",
    ],
)
def test_a_template_reaches_nothing(evil: str) -> None:
    try:
        text = rendered(evil + ALL)
    except ConfigError:
        return
    assert text == "user:Hi;"  # what it asked for does not exist


def test_a_template_cannot_change_what_the_server_holds() -> None:
    messages = [dict(USER)]
    ChatTemplate(ALL).render(messages)
    assert messages == [USER]


def test_variables_of_a_request_reach_the_template(start: Start, engine: FakeEngine) -> None:
    client = start(chat_template=ALL + "{{ 'T' if enable_thinking }}{{ reasoning_effort }}")
    body = {"messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}}
    assert client.send("/v1/chat/completions", body).status == 200
    assert engine.requests[0].text == "<s>user:Hi;Tlow"
    taken = client.send("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {"messages": []}})
    assert (taken.status, taken.error["param"]) == (400, "chat_template_kwargs.messages")


def test_what_a_template_refuses_is_the_requests_fault(start: Start) -> None:
    client = start(
        chat_template=ALL + "{% if messages[0].content == 'bad' %}{{ raise_exception('Not that.') }}{% endif %}"
    )
    answer = client.send("/v1/chat/completions", {"messages": [{"role": "user", "content": "bad"}]})
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert "Not that" in answer.error["message"]


# What templates expect


def test_what_templates_of_others_use() -> None:
    assert rendered("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>Hi</s>"
    assert rendered(ALL + "{% generation %}x{% endgeneration %}") == "user:Hi;x"
    assert rendered("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", USER, USER) == "Hi"
    assert rendered(ALL + "{{ {'a': 'é<'} | tojson }}") == 'user:Hi;{"a": "é<"}'
    assert rendered("{% if true %}\n  {{ messages[0].content }}\n{% endif %}\n") == "  Hi\n"
    assert rendered(ALL + "{{ strftime_now('%Y') | length }}") == "user:Hi;4"
    assert rendered(ALL + "{{ add_generation_prompt }}", begins_answer=False) == "user:Hi;False"
    assert rendered(ALL + "{{ undefined_thing }}") == "user:Hi;"


def test_a_template_that_knows_no_system_gets_it_with_the_user() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + ALL
    )
    system = {"role": "system", "content": "Be short."}
    assert rendered(source, system, USER) == "user:Be short.\n\nHi;"
    assert rendered(ALL, system, USER) == "system:Be short.;user:Hi;"
    assert rendered(source, system) == "user:Be short.;"


def test_no_content_is_never_the_word_none() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    assert "None" not in rendered(ALL, USER, {"role": "assistant", "content": None})
    assert "None" not in rendered(ALL, USER, {"role": "assistant", "content": None, "tool_calls": [call]})


def test_tools_have_a_template_of_their_own_where_the_model_has_one() -> None:
    template = ChatTemplate(ALL, tool_source="{{ tools[0].function.name }}" + ALL)
    assert template.render([USER]) == "user:Hi;"
    assert not template.knows_tools  # calls and results do not appear
    full = "{% for t in tools %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}"
    full += "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    both = ChatTemplate(ALL, tool_source=full)
    assert both.knows_tools
    assert both.render([USER], [{"type": "function", "function": {"name": "f"}}]) == "fHi"
    assert both.render([USER]) == "user:Hi;"


def test_a_refusal_is_an_error_of_the_request() -> None:
    template = ChatTemplate("{% if messages | length > 1 %}{{ raise_exception('too many') }}{% endif %}" + ALL)
    with pytest.raises(ApiError, match="too many"):
        template.render([USER, USER])
