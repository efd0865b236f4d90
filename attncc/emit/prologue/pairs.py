"""Indices that both tokens of a pair decide → lines that refuse those outside their axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attncc.emit.dialects import HOST, TORCH
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.prologue.extremes import FIRST_KEY, FIRST_ROW, LAST_KEY, LAST_ROW, extremes
from attncc.emit.prologue.tokens import TokenWriter
from attncc.spec.data import Data
from attncc.spec.expr import Const, Expr, Let, Local, Name, Symbol, Token, children, rebuild, walk
from attncc.spec.text import text as spec_text

_SYMBOLS = {
    Name.I: "i",
    Name.J: "j",
    Name.HEAD: "head",
    Name.HEADS: "heads",
    Name.QUERIES: "n",
    Name.KEYS: "m",
}
_ENDS = {
    FIRST_ROW.name: "q_start",
    LAST_ROW.name: "(q_start + n - 1)",
    FIRST_KEY.name: "k_start",
    LAST_KEY.name: "(k_start + m - 1)",
}


def can_check(index: Expr) -> bool:
    """Whether an index is made of positions, lengths, heads and whole numbers of tokens."""
    leaves = [each for each in walk(index) if not children(each)]
    return all(
        isinstance(each, Const | Token) or (isinstance(each, Symbol) and each.name in _SYMBOLS) for each in leaves
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the pattern asks beside positions: of rows and of keys, each with its text, and tables."""

    order: tuple[str, ...] = ()  # as `_related` takes them
    rows: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


def print_check(
    tokens: TokenWriter, data: Mapping[str, Data], table: str, index: Expr, place: int, facts: Facts
) -> None:
    """Lines that look at pairs, where the call's first and last positions alone do not prove an index."""
    said, index = spec_text(index), _plain(index)
    names = list(dict.fromkeys(each.name for each in walk(index) if isinstance(each, Local)))
    rows = [name for name in names if data[name].is_row]
    keys = [name for name in names if not data[name].is_row]
    pairs = ExpressionWriter(TORCH, lambda name: _SYMBOLS[name], lambda name: name)
    host = ExpressionWriter(HOST, lambda name: _SYMBOLS[name], lambda name: _ENDS[name])
    ends = extremes(index)
    of_rows, of_keys = (
        ", ".join(
            [position, *(tokens.aligned(data[name]) for name in each), *(f"{x}[..., None]" for x in more.values())]
        )
        for position, each, more in (("i", rows, facts.rows), ("j", keys, facts.keys))
    )
    at = {name: f"rows[{number}]" for number, name in enumerate(facts.rows, start=1 + len(rows))}
    at |= {name: f"keys[{number}]" for number, name in enumerate(facts.keys, start=1 + len(keys))}
    read = "".join(f"{at.get(name, name)}, " for name in facts.order)
    own = ["i", *rows, *["_"] * len(facts.rows), "j", *keys, *["_"] * len(facts.keys)]
    own = [f"_{number}" if name == "_" else name for number, name in enumerate(own)]
    call = (
        f"_pairs_within(lambda {', '.join(own)}: {pairs.write(index)}, "
        f"lambda rows, keys, call: _related(rows[0], keys[0], {read}call), "
        f"({of_rows},), ({of_keys},), hidden, _Call(n, m, heads, head), {table}.shape[{place}], "
        f'"{table}", {said!r}, {place})'
    )
    tokens.used |= {"_pairs_within", *pairs.used}
    if ends is None:
        tokens.body.line(call)
        return
    low, high = (host.write(each) for each in ends)
    outside = f"q_starts is not None or {low} < 0 or {high} >= {table}.shape[{place}]"
    tokens.used.add("_at_hand")
    with tokens.body.block(f"if _at_hand(i) and ({outside}):"):
        tokens.body.line(call)


def _plain(index: Expr) -> Expr:
    """An index with tokens' numbers as variables and without the names that `let` gives."""
    match index:
        case Let(value=value):
            return _plain(value)
        case Token(name=name):
            return Local(name)
        case _:
            return rebuild(index, _plain)
