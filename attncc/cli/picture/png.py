"""Images of palette colours ↔ PNG bytes, by the standard library alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Color = tuple[int, int, int]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE = 3  # the colour type of images whose bytes are places in a palette
_AT_ONCE = 1 << 22  # bytes that are compressed in one step


def encode(image: NDArray[Any], palette: Sequence[Color], *, dots_per_meter: int = 0) -> bytes:
    """An image [height, width] of palette places (uint8) as a PNG file; nothing in it depends on the day."""
    height, width = image.shape
    parts = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _PALETTE, 0, 0, 0)),
        _chunk(b"PLTE", bytes(part for color in palette for part in color)),
    ]
    if dots_per_meter:
        parts.append(_chunk(b"pHYs", struct.pack(">IIB", dots_per_meter, dots_per_meter, 1)))
    parts += [_chunk(b"IDAT", b"".join(_compressed(image))), _chunk(b"IEND", b"")]
    return _SIGNATURE + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _compressed(image: NDArray[Any]) -> Iterable[bytes]:
    import numpy as np

    packer = zlib.compressobj(6)
    height, width = image.shape
    step = max(1, _AT_ONCE // (width + 1))
    for at in range(0, height, step):
        some = image[at : at + step]
        # every line begins with the number of its filter; 0 is none
        yield packer.compress(np.pad(some, ((0, 0), (1, 0))).astype(np.uint8).tobytes())
    yield packer.flush()


def decode(data: bytes) -> NDArray[Any]:
    """The palette places of an image that `encode` has made."""
    import numpy as np

    found: dict[bytes, bytes] = {}
    at = len(_SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + length]
        at += length + 12
    width, height = struct.unpack_from(">II", found[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(found[b"IDAT"]), dtype=np.uint8).reshape(height, width + 1)
    return lines[:, 1:]
