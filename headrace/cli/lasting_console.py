"""A console for commands that keep something running: who stops reading what they say does not end it."""

import os

from rich.console import Console


class LastingConsole(Console):
    """Goes quiet when its pipe breaks (`headrace up | tee log`, and Ctrl-C reaches `tee` first).

    Rich's own exits on the spot, in the middle of an orderly stop.
    """

    def on_broken_pipe(self) -> None:
        """Say no more. What is still in the buffer must not fail when the process ends."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
