"""LangChain on ``pyspec serve``: a chain, answers at once, a stream, structured output, and a call of a tool.

    pip install langchain-openai
    pyspec serve -m smollm2-135m --spec-type ngram-simple    # prints its address
    python examples/langchain_chat.py http://127.0.0.1:8080

LangChain speaks OpenAI's interface, so the address is all that it needs; a key where the server asks for one comes from
``OPENAI_API_KEY``. What the server says about speculation is in the answer's metadata.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Opinion(BaseModel):
    """What somebody thinks of something."""

    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3, 4, 5]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"It is sunny in {city}."


def main() -> None:
    """Ask in all these ways."""
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    key = SecretStr(os.environ.get("OPENAI_API_KEY", "none"))
    model = ChatOpenAI(model="any", base_url=f"{address}/v1", api_key=key, temperature=0, max_completion_tokens=64)

    prompt = ChatPromptTemplate([("system", "You answer in {language}."), ("user", "{question}")])
    chain = prompt | model | StrOutputParser()
    print("chain:", chain.invoke({"language": "English", "question": "Name a colour."}))

    questions = [{"language": "English", "question": text} for text in ("Name a fruit.", "Count to three.")]
    print("at once:", chain.batch(questions))

    print("stream:", end=" ")
    for piece in chain.stream({"language": "English", "question": "Say hello."}):
        print(piece, end="|", flush=True)
    print()

    opinion = model.with_structured_output(Opinion, method="json_schema").invoke("What do you think of apples?")
    print("structured:", opinion)

    calling = model.bind_tools([weather], tool_choice="weather")
    call = calling.invoke("What is the weather in Rome?").tool_calls[0]
    print("tool:", weather.invoke(call["args"]))

    usage = model.invoke("Repeat: one two one two one two").usage_metadata
    print("tokens:", usage and usage["total_tokens"])


if __name__ == "__main__":
    main()
