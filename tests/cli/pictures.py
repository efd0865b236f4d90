"""Pictures read back: the pixels of a PNG file, the paths of an SVG file, the characters of a terminal → pairs."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

SVG = "{http://www.w3.org/2000/svg}"


def png_colors(data: bytes) -> NDArray[np.uint8]:
    """The colours of a picture, [height, width, 3]."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks)[-1] == b"IEND"
    width, height, depth, kind, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, kind, *rest) == (8, 3, 0, 0, 0)
    raw = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, width + 1)
    assert not raw[:, 0].any(), "every line has filter 0"
    palette = np.frombuffer(chunks[b"PLTE"], dtype=np.uint8).reshape(-1, 3)
    assert len(palette) <= 256
    return palette[raw[:, 1:]]


@dataclass(frozen=True, eq=False)
class SvgPanel:
    """What a panel of an SVG picture shows: cells of each kind."""

    heads: tuple[int, ...]
    related: NDArray[np.bool_]
    visited: NDArray[np.bool_]
    unmasked: NDArray[np.bool_]


def svg_panels(path: Path, n: int, m: int) -> list[SvgPanel]:
    """The panels of a picture."""
    found = []
    for group in ElementTree.parse(path).getroot().iter(f"{SVG}g"):
        if group.get("class") != "panel":
            continue
        cells = {
            str(each.get("class")): filled(str(each.get("d")), n, m)
            for each in group.iter(f"{SVG}path")
            if each.get("class") not in ("tiles", "pairs")
        }
        assert "wrong" not in cells
        nothing = np.zeros((n, m), dtype=np.bool_)
        heads = tuple(map(int, str(group.get("data-heads")).split()))
        found.append(SvgPanel(heads, *(cells.get(name, nothing) for name in ("related", "visited", "unmasked"))))
    return found


def filled(data: str, n: int, m: int) -> NDArray[np.bool_]:
    """The cells inside a path by the even-odd rule: each line down a column turns over everything to its right."""
    cells = np.zeros((n, m + 1), dtype=np.bool_)
    for loop in re.findall(r"M(\d+) (\d+)([^z]*)z", data):
        x, y = int(loop[0]), int(loop[1])
        start = y
        for way, amount in re.findall(r"([hv])(-?\d+)", loop[2]):
            if way == "h":
                x += int(amount)
                continue
            low, high = sorted((y, y + int(amount)))
            cells[low:high, x] ^= True
            y += int(amount)
        low, high = sorted((start, y))  # the way back
        cells[low:high, int(loop[0])] ^= True
    return np.logical_xor.accumulate(cells, axis=1)[:, :m]


def drawn_pairs(text: str, halves: str, n: int, m: int) -> NDArray[np.bool_]:
    """The pairs of a drawing at full size, of characters that show none, the upper, the lower and both."""
    rows = re.findall(r"^ *-?\d* *[│|](.*?)[│|]", text, re.M)
    codes = np.array([[halves.index(each) for each in row] for row in rows])
    pairs = np.stack([codes & 1, codes >> 1], axis=1).reshape(-1, m).astype(np.bool_)
    assert not pairs[n:].any()
    return pairs[:n]
