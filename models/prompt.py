"""From messages to token ids: what the template means, what the user wrote, and never the one for the other."""

from datetime import datetime
from typing import Any, get_args

import msgspec

from models.disguise import Conversation, Disguise
from models.template import ChatTemplate
from models.tokenizer import Tokenizer
from schemas.errors import ContextTooLong, InvalidValue, ModelFileError
from schemas.requests import Role

ROLES = get_args(Role)

# JSON Schemas of tools nest some ten levels; far below what would exhaust Python's stack here or in a template.
MAX_DEPTH = 64


class Prompt(msgspec.Struct, frozen=True):
    """Token ids for the engine. The first `num_reused_tokens` are those of earlier turns, unchanged."""

    token_ids: list[int]
    num_reused_tokens: int = 0


def build_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: list[dict[str, Any]] | None = None,
    now: datetime | None = None,
    max_prompt_tokens: int | None = None,
) -> Prompt:
    """The prompt of a whole conversation: the ids of transformers' `apply_chat_template`, except that special tokens
    which users spell in their messages are ordinary text.

    `now` is the request's time, for templates that write the date. Raises InvalidValue if the template does not accept
    the messages, ContextTooLong if there are more than `max_prompt_tokens`.
    """
    conversation = _checked(Conversation(messages, tools))
    disguise = Disguise(tokenizer, conversation)
    render = _Renderer(tokenizer, template, disguise, add_generation_prompt, now)
    pieces = [disguise.reveal(piece) for piece in tokenizer.split_special(render(conversation))]
    return Prompt(_encode(tokenizer, pieces, [], max_prompt_tokens))


def continue_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    previous_ids: list[int],
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: list[dict[str, Any]] | None = None,
    now: datetime | None = None,
    max_prompt_tokens: int | None = None,
) -> Prompt:
    """The prompt of a session's next turn: `previous_ids` exactly as they were computed, then only the new messages.

    `previous_ids` are the prompt and output ids of the turns before; the output may end with an end-of-turn token or
    may have been cut anywhere. Text is never tokenised a second time, so the KV of the history stays usable.
    Equals `build_prompt` of the whole conversation where the history tokenises canonically. Raises as `build_prompt`.
    """
    if not previous_ids:
        raise ValueError("a session's first turn has no previous ids: use build_prompt")
    _checked(Conversation(messages, tools))
    disguise = Disguise(tokenizer, Conversation(messages, tools))
    # A user's message first, since many templates insist that roles alternate; what precedes the sentinel is dropped,
    # and with it the default system prompt that some templates open every conversation with.
    opening = [{"role": "user", "content": "-"}, {"role": "assistant", "content": disguise.sentinel}]
    render = _Renderer(tokenizer, template, disguise, add_generation_prompt, now)
    _, sentinel, rest = render(Conversation([*opening, *messages], tools)).rpartition(disguise.sentinel)
    if not sentinel:
        raise ModelFileError("The chat template leaves out the assistant's text, so a session cannot go on with it.")
    pieces = _without_end_of_turn(tokenizer, tokenizer.split_special(rest), previous_ids[-1])
    pieces = [disguise.reveal(piece) for piece in pieces]
    return Prompt(_encode(tokenizer, pieces, previous_ids, max_prompt_tokens), len(previous_ids))


def completion_prompt(tokenizer: Tokenizer, text: str, *, max_prompt_tokens: int | None = None) -> Prompt:
    """The prompt of a text completion: special tokens spelled in it are meant, since no template or turn is at stake.

    Raises InvalidValue for text that is not valid Unicode, ContextTooLong above `max_prompt_tokens`.
    """
    vocabulary = tokenizer.vocabulary
    begin = [vocabulary.bos_token_id] if vocabulary.add_bos and vocabulary.bos_token_id is not None else []
    return Prompt(_encode(tokenizer, tokenizer.split_special(text), begin, max_prompt_tokens, param="prompt"))


class _Renderer(msgspec.Struct, frozen=True):
    """Renders one conversation twice, and returns the text (still disguised) if both disguises agree on it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    disguise: Disguise
    add_generation_prompt: bool
    now: datetime | None

    def __call__(self, conversation: Conversation) -> str:
        hidden = conversation.disguised(self.disguise.hide)
        text = self._render(hidden)
        strictly_hidden = conversation.disguised(self.disguise.hide_strictly)
        if strictly_hidden != hidden:
            self._compare(text, self._render(strictly_hidden))
        return text

    def _render(self, conversation: Conversation) -> str:
        return self.template.render(
            conversation.messages,
            add_generation_prompt=self.add_generation_prompt,
            tools=conversation.tools,
            now=self.now,
        )

    def _compare(self, text: str, strict_text: str) -> None:
        split = self.tokenizer.split_special
        if split(text)[1::2] != split(strict_text)[1::2]:
            raise InvalidValue(
                "The chat template would make a special token of the model from what a message says.", param="messages"
            )


def _checked(conversation: Conversation) -> Conversation:
    """The conversation, if it has known roles only (a template may build a special token from one) and is not deep."""
    _check_depth([conversation.messages, conversation.tools], MAX_DEPTH)
    for index, message in enumerate(conversation.messages):
        if message.get("role") not in ROLES:
            allowed = ", ".join(ROLES)
            raise InvalidValue(
                f"The role {message.get('role')!r} is not known; roles are {allowed}.", param=f"messages[{index}].role"
            )
    return conversation


def _check_depth(value: Any, remaining: int) -> None:
    if remaining < 0:
        raise InvalidValue(f"The messages or tools are nested deeper than {MAX_DEPTH} levels.", param="messages")
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for member in members:
        _check_depth(member, remaining - 1)


def _without_end_of_turn(tokenizer: Tokenizer, pieces: list[str], last_id: int) -> list[str]:
    """`pieces` without the end of the assistant's turn, where the model has written it itself."""
    closes_turn = len(pieces) > 1 and not pieces[0].strip() and tokenizer.special_tokens[pieces[1]] == last_id
    return pieces[2:] if closes_turn else pieces


def _encode(
    tokenizer: Tokenizer, pieces: list[str], previous_ids: list[int], limit: int | None, param: str = "messages"
) -> list[int]:
    """Ids of ordinary text (even places) and special tokens (odd places), after the previous ids."""
    fewest = len(previous_ids) + sum(map(tokenizer.fewest_tokens, pieces))
    if limit is not None and fewest > limit:
        raise ContextTooLong(f"The prompt has at least {fewest} tokens; {limit} are allowed. Shorten it.", param=param)
    token_ids = list(previous_ids)
    for index, piece in enumerate(pieces):
        token_ids += [tokenizer.special_tokens[piece]] if index % 2 else tokenizer.encode(piece, special=False)
    if limit is not None and len(token_ids) > limit:
        raise ContextTooLong(f"The prompt has {len(token_ids)} tokens; {limit} are allowed. Shorten it.", param=param)
    return token_ids
