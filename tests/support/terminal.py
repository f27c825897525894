"""A program on a pseudo-terminal, for tests that type to it and read what it shows."""

import os
import re
import time

from cli import PATIENCE


class Terminal:
    def __init__(self, descriptor):
        """descriptor: the terminal's own side, as pty.fork() and pty.openpty() give it."""
        self.terminal, self.seen = descriptor, ""

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, pattern):
        """Reads until the pattern has come since the last wait; returns what came with it."""
        limit = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < limit, f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended without {pattern!r}: {self.seen!r}") from None
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def read_to_end(self):
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:
            pass  # the program has closed its side
