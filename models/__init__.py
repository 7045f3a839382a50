"""What pipeline and engine both know of a model, without torch: spec, tokenizer, template, prompts, hashes, KV keys."""
