"""Lines of Python with indentation: what printers write into."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

WIDTH = 100

_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_WORD = re.compile(r"\w+")
_ASSIGNMENT = re.compile(r" +(\w+(?:, \w+)*) = ")


class Writer:
    """Collects lines; blocks indent."""

    def __init__(self, width: int = WIDTH) -> None:
        self._width = width
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
        for line in fill(text, self._width - 4 * self._depth - 2):
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
                if text and len(text) + len(item) + 1 > self._width - 4 * self._depth:
                    self.line(text.rstrip())
                    text = ""
                text += f"{item}, "
            if text:
                self.line(text.rstrip())
        self._depth -= 1
        self.line(f"{closing}  # fmt: skip")

    def call(self, opening: str, arguments: Sequence[str], closing: str) -> None:
        """A call in one line, or as a listing where it is too long for that."""
        text = f"{opening}{', '.join(arguments)}{closing}"
        if len(text) + 4 * self._depth <= self._width:
            self.line(text)
        else:
            self.listing(opening, [arguments], closing)

    @property
    def place(self) -> int:
        """Where the next line goes, for `drop_unread`."""
        return len(self._lines)

    def drop_unread(self, since: int) -> None:
        """Drop assignments after a place whose names no other line after it reads."""
        while unread := self._unread(since):
            for at in reversed(unread):
                del self._lines[at]

    def _unread(self, since: int) -> list[int]:
        """The places of assignments whose names stand in no other line."""
        words = [set(_WORD.findall(_STRING.sub("", line).partition("#")[0])) for line in self._lines[since:]]
        lines_of = Counter(word for each in words for word in each)
        return [
            since + at
            for at, (line, own) in enumerate(zip(self._lines[since:], words, strict=True))
            if (match := _ASSIGNMENT.match(line)) and line.count("(") == line.count(")")
            if all(lines_of[name] == (name in own) for name in match[1].split(", "))
        ]

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


def literal(text: str, width: int = 80) -> str:
    """A string of words as Python writes it, in several parts where it is long."""
    lines = fill(text, width)
    if len(lines) < 2:
        return f'"{text}"'
    parts = (f'"{line} "' for line in lines[:-1])
    return f"({' '.join(parts)} {literal(lines[-1], width)})"


def listed(names: list[str]) -> str:
    """Names as a sentence lists them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
