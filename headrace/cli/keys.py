"""Typing while an answer streams: keys are not echoed into it, and the first one is heard at once."""

import asyncio
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_keys() -> Iterator[None]:
    """Inside the block the terminal echoes nothing, and gives each key at once. Ctrl-C stays a signal."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


async def key_pressed() -> None:
    """Return when something was typed. It is not read: whoever prompts next finds it."""
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
