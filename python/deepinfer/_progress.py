"""A progress bar on standard error: tqdm's where it is installed, else a plain line."""

from __future__ import annotations

import sys
import time


class _Line:
    """Written only to a terminal, and wiped away at the end."""

    def __init__(self, total: int, description: str) -> None:
        self.total, self.description = total, description
        self.done = self.tokens = 0
        self.begun = self.drawn = time.monotonic()
        self.enabled = sys.stderr.isatty()
        self.dirty = False

    def update(self, done: int, tokens: int) -> None:
        self.done += done
        self.tokens += tokens
        now = time.monotonic()
        if self.enabled and now - self.drawn >= 0.1:
            self.drawn, self.dirty = now, True
            rate = self.tokens / (now - self.begun)
            sys.stderr.write(f"\r{self.description} {self.done}/{self.total}, {rate:.0f} tokens/s"
                             "\033[K")
            sys.stderr.flush()

    def close(self) -> None:
        if self.dirty:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class _Tqdm:
    def __init__(self, tqdm, total: int, description: str) -> None:
        self.bar = tqdm(total=total, desc=description, dynamic_ncols=True)
        self.tokens, self.begun = 0, time.monotonic()

    def update(self, done: int, tokens: int) -> None:
        self.tokens += tokens
        if done:
            rate = self.tokens / max(time.monotonic() - self.begun, 1e-9)
            self.bar.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
            self.bar.update(done)

    def close(self) -> None:
        self.bar.close()


class _Silent:
    def update(self, done: int, tokens: int) -> None:
        pass

    def close(self) -> None:
        pass


def progress(enabled: bool, total: int, description: str):
    """Something with update(answers done, tokens made) and close()."""
    if not enabled:
        return _Silent()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Line(total, description)
    return _Tqdm(tqdm, total, description)
