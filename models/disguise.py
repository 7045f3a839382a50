"""Keeps what users write from becoming special tokens on its way through a chat template.

A template returns one text in which its own `<|im_end|>` and a user's look alike. So characters in the messages are
disguised before rendering, each by a private-use character that the messages do not contain; the rendered text is cut
at the special tokens that are left, which are the template's own; then the disguise is taken off the pieces.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import msgspec

from models.tokenizer import Tokenizer
from schemas.errors import InvalidValue

PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
PRIVATE_USE_RANGES = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

# Templates compare identifiers ('function', 'tool_calls'), so the strict disguise leaves their characters alone.
NO_PUNCTUATION = re.compile(r"[\w\s-]", re.ASCII)


class Conversation(msgspec.Struct, frozen=True):
    """What a user brings to a chat template: OpenAI's messages and tools, as JSON values."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None

    def disguised(self, hide: Callable[[str], str]) -> "Conversation":
        """All texts hidden, except roles: those are a closed set, and templates compare them."""
        messages = [
            {key: value if key == "role" else _hide_in(value, hide) for key, value in message.items()}
            for message in self.messages
        ]
        return Conversation(messages, _hide_in(self.tools, hide))


class Disguise:
    """Stand-ins for the characters of a tokenizer's special tokens, chosen so that the conversation has none of them.

    `hide` is what gets rendered: it breaks whole special tokens only, so that a template sees all else as written.
    `hide_strictly` is the check: it leaves no punctuation of a special token and no bare name of one, so that a
    template cannot put one together by trimming, joining or changing case. If both render to the same special tokens,
    none was forged (short of a template that joins a token's name from several fields).
    `sentinel` is one more character that the conversation does not contain.
    """

    def __init__(self, tokenizer: Tokenizer, conversation: Conversation) -> None:
        special_tokens = tokenizer.special_tokens
        characters = sorted(set("".join(special_tokens)))
        free = _unused_private_characters([conversation.messages, conversation.tools])
        self._stand_ins = dict(zip(characters, free, strict=False))
        sentinel = next(free, None)
        if sentinel is None:
            raise InvalidValue("The text uses all private-use characters of Unicode; leave some out.", param="messages")
        self.sentinel = sentinel
        self._split = tokenizer.split_special
        self._full = str.maketrans(self._stand_ins)
        self._strict = str.maketrans({c: s for c, s in self._stand_ins.items() if not NO_PUNCTUATION.match(c)})
        self._revealed = str.maketrans({stand_in: char for char, stand_in in self._stand_ins.items()})
        self._names = frozenset(_bare_name(token) for token in special_tokens)

    def hide(self, text: str) -> str:
        """`text` with the first character of each special token disguised."""
        pieces = self._split(text)
        while len(pieces) > 1:  # again: breaking one special token may lay open another inside it
            pieces[1::2] = [self._break(token) for token in pieces[1::2]]
            pieces = self._split("".join(pieces))
        return pieces[0]

    def hide_strictly(self, text: str) -> str:
        """`text` with nothing left that could become part of a special token."""
        if text.strip().casefold() in self._names:
            return text.translate(self._full)
        return self.hide(text).translate(self._strict)

    def reveal(self, text: str) -> str:
        """`text` as it was before `hide`."""
        return text.translate(self._revealed) if PRIVATE_USE.search(text) else text

    def _break(self, text: str) -> str:
        return self._stand_ins[text[0]] + text[1:]


def _hide_in(value: Any, hide: Callable[[str], str]) -> Any:
    """A JSON value with every text in it hidden, names of fields too: a tool's parameters are named by the user."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {_hide_in(key, hide): _hide_in(member, hide) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_in(member, hide) for member in value]
    return value


def _bare_name(special_token: str) -> str:
    """'im_end' of '<|im_end|>': a template that writes '<|' + name + '|>' would make the token from it."""
    return re.sub(r"^\W+|\W+$", "", special_token, flags=re.ASCII).casefold() or special_token


def _unused_private_characters(values: object) -> Iterator[str]:
    used = set(chain.from_iterable(map(PRIVATE_USE.findall, _texts(values))))
    return (char for char in map(chr, chain(*PRIVATE_USE_RANGES)) if char not in used)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.keys()))
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _texts(member)
