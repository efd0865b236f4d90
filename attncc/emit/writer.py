"""Lines of Python with indentation: what printers write into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

WIDTH = 100


class Writer:
    """Collects lines; blocks indent."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line at the current indentation; an empty text is an empty line."""
        self._lines.append("    " * self._depth + text if text else "")

    def lines(self, text: str) -> None:
        """Several lines, each indented as it is within the text."""
        for line in text.strip("\n").split("\n"):
            self.line(line)

    def comment(self, text: str) -> None:
        """A comment, wrapped to the width."""
        for line in fill(text, WIDTH - 4 * self._depth - 2):
            self.line(f"# {line}")

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """A line that opens a block (with its colon), and the block."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Deeper lines without an opening one."""
        self._depth += 1
        yield
        self._depth -= 1

    def listing(self, opening: str, groups: Sequence[Sequence[str]], closing: str) -> None:
        """`opening`, items in lines as full as they go with a new line for each group, `closing`; never reformatted."""
        self.line(opening)
        self._depth += 1
        for group in groups:
            text = ""
            for item in group:
                if text and len(text) + len(item) + 2 > WIDTH - 4 * self._depth:
                    self.line(text.rstrip())
                    text = ""
                text += f"{item}, "
            if text:
                self.line(text.rstrip())
        self._depth -= 1
        self.line(f"{closing}  # fmt: skip")

    def text(self) -> str:
        """Everything written so far."""
        return "\n".join(self._lines) + "\n"


def fill(text: str, width: int) -> list[str]:
    """The words of a text in lines of at most `width` characters."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        if current and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*lines, current] if current else lines
