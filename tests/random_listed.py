"""Random patterns that read declared data, each with what it means for one pair, worked out by hand.

Nothing here goes through the expressions of a spec: an atom is a text and a function of the pair. `pick` is the only
source of randomness, as in `random_specs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from attncc.check.sizes import Case
from tests.random_specs import Pick

DECLARED = {
    "doc": "input doc[B, m]: int ascending",
    "kind": "input kind[B, H, m]: int",
    "label": "input label[m]: int",
    "pad": "input pad[B, m]: bool",
    "mark": "input mark[B, H, n]: bool",
    "lo": "input lo[B, n]: int",
    "hi": "input hi[B, H, n]: int",
    "until": "input until[B, m]: int",
    "time": "input time[B, m]: real ascending",
    "heat": "input heat[B, H, n]",
    "reach": "input reach[B]: int",
    "span": "param span[H]",
    "blocks": "input blocks[B, H, ceil(n / 16), ceil(m / 16)]: bool",
    "tiles": "input tiles[H, ceil(m / 8), ceil(m / 8)]: bool",
    "limits": "input limits[B, ceil(m / 32)]: int",
    "allowed": "input allowed[4, 4]: bool",
    "kinds": "input kinds[B, m]: int",
    "picks": "input picks[B, H, n, 3]: int",
    "chosen": "input chosen[B, n, 4]: int",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of a call: batch entry, head, position of the query and of the key, and the data by name."""

    case: Case
    data: Mapping[str, Tensor]
    b: int
    h: int
    i: int
    j: int

    @property
    def row(self) -> int:
        """The place of the query among the rows of the call."""
        return self.i - _first(self.case, self.b)

    @property
    def key(self) -> int:
        """The place of the key among the keys of the call."""
        return self.j - self.case.k_start

    def own(self, name: str) -> float:
        """What a row has."""
        return self._of_token(name, self.row)

    def entries(self, name: str) -> list[int]:
        """The list that a row has."""
        values = self.data[name][self.b]
        return [each for each in (values[self.h] if "H," in DECLARED[name] else values)[self.row].tolist() if each >= 0]

    def at(self, name: str) -> float:
        """What the key has."""
        return self._of_token(name, self.key)

    def here(self, name: str) -> float:
        """What the key at the query's position has; 0 where it is hidden."""
        place = self.i - self.case.k_start
        return self._of_token(name, place) if place < _visible(self.case, self.b) else 0

    def _of_token(self, name: str, place: int) -> float:
        values, batch, head = self.data[name], "[B" in DECLARED[name], "H," in DECLARED[name]
        heads = values.shape[int(batch)] if head else 1
        leading = ((self.b,) if batch else ()) + ((self.h * heads // self.case.heads,) if head else ())
        return values[(*leading, place)].item()

    def entry(self, name: str, *places: int) -> float:
        """What a table has, in the part of the pair's batch entry if it has such parts."""
        values = self.data[name]
        return values[(self.b, *places) if "[B" in DECLARED[name] else places].item()


def _first(case: Case, b: int) -> int:
    if isinstance(case.q_start, tuple):
        return case.q_start[b]
    return case.k_start + case.m - case.n if case.q_start is None else case.q_start


def _visible(case: Case, b: int) -> int:
    if isinstance(case.kv_lengths, tuple):
        return case.kv_lengths[b]
    return case.m if case.kv_lengths is None else case.kv_lengths


Holds = Callable[[Pair], bool]

# `{a}` is a whole number of 1 … 9
ATOMS: dict[str, Callable[[Pair, int], bool]] = {
    "doc[i] == doc[j]": lambda x, a: x.here("doc") == x.at("doc"),
    "doc[i] - doc <= {a}": lambda x, a: x.here("doc") - x.at("doc") <= a,
    "same(doc)": lambda x, a: x.here("doc") == x.at("doc"),
    "same(kind)": lambda x, a: x.here("kind") == x.at("kind"),
    "label[i] != label[j]": lambda x, a: x.here("label") != x.at("label"),
    "(kind[j] + kind[i]) % 3 == 0": lambda x, a: (x.at("kind") + x.here("kind")) % 3 == 0,
    "kind[j] * (i - j) > {a}": lambda x, a: x.at("kind") * (x.i - x.j) > a,
    "kind in [0, 1, {a}]": lambda x, a: x.at("kind") in (0, 1, a),
    "!pad": lambda x, a: not x.at("pad"),
    "pad[j]": lambda x, a: bool(x.at("pad")),
    "pad[i]": lambda x, a: bool(x.here("pad")),
    "pad[i] | pad[j]": lambda x, a: bool(x.here("pad") or x.at("pad")),
    "[pad[i]] == [pad]": lambda x, a: x.here("pad") == x.at("pad"),
    "j in picks": lambda x, a: x.j in x.entries("picks"),
    "j // 8 in picks": lambda x, a: x.j // 8 in x.entries("picks"),
    "j // {a} in chosen": lambda x, a: x.j // a in x.entries("chosen"),
    "!(j in chosen)": lambda x, a: x.j not in x.entries("chosen"),
    "kind in chosen": lambda x, a: x.at("kind") in x.entries("chosen"),
    "i - j in picks": lambda x, a: x.i - x.j in x.entries("picks"),
    "mark": lambda x, a: bool(x.own("mark")),
    "mark[i] & j < {a}": lambda x, a: bool(x.own("mark")) and x.j < a,
    "(mark ? causal : i - j < {a})": lambda x, a: x.j <= x.i if x.own("mark") else x.i - x.j < a,
    "clear(pad)": lambda x, a: not x.at("pad"),
    "lo[i] <= j < hi[i]": lambda x, a: x.own("lo") <= x.j < x.own("hi"),
    "lo <= j + {a}": lambda x, a: x.own("lo") <= x.j + a,
    "hi > j": lambda x, a: x.own("hi") > x.j,
    "i < until[j]": lambda x, a: x.i < x.at("until"),
    "time[i] - time[j] < 0.5": lambda x, a: x.here("time") - x.at("time") < 0.5,
    "abs(time[i] - time[j]) * {a} <= 3": lambda x, a: abs(x.here("time") - x.at("time")) * a <= 3,
    "heat <= j": lambda x, a: x.own("heat") <= x.j,
    "heat > j - {a}": lambda x, a: x.own("heat") > x.j - a,
    "heat > time": lambda x, a: x.own("heat") > x.at("time"),
    "i - j < reach": lambda x, a: x.i - x.j < x.entry("reach"),
    "abs(i - j) <= span[h]": lambda x, a: abs(x.i - x.j) <= x.entry("span", x.h),
    "blocks[h, (i - first) // 16, (j - low) // 16]": lambda x, a: bool(
        x.entry("blocks", x.h, x.row // 16, x.key // 16)
    ),
    "tiles[h, clip(i, 0, m - 1) // 8, (j - low) // 8]": lambda x, a: bool(
        x.entry("tiles", x.h, min(max(x.i, 0), x.case.m - 1) // 8, x.key // 8)
    ),
    "limits[(j - low) // 32] >= i - j": lambda x, a: x.entry("limits", x.key // 32) >= x.i - x.j,
    "allowed[kinds[i], kinds[j]]": lambda x, a: bool(x.entry("allowed", x.here("kinds"), x.at("kinds"))),  # type: ignore[arg-type]
    "allowed[clip(i - j, 0, 3), kinds]": lambda x, a: bool(
        x.entry("allowed", min(max(x.i - x.j, 0), 3), x.at("kinds"))  # type: ignore[arg-type]
    ),
    "shift == 0": lambda x, a: x.here("doc") - x.at("doc") == 0,
    "causal": lambda x, a: x.j <= x.i,
    "window({a}, {a})": lambda x, a: abs(x.i - x.j) <= a,
    "(i - j) % {a} == 0": lambda x, a: (x.i - x.j) % a == 0,
    "h % 2 == 0": lambda x, a: x.h % 2 == 0,
}
_WORDS = "pattern same(x) = x[i] == x[j]\npattern clear(p) = !p[j]\n"


def random_listed_pattern(pick: Pick, depth: int) -> tuple[str, Holds]:
    """The text of a pattern and whether it holds of a pair. `first` and `low` are where rows and keys begin."""
    if depth == 0:
        text, number = pick(list(ATOMS)), pick(range(1, 10))
        holds = ATOMS[text]
        return text.replace("{a}", str(number)), lambda x: holds(x, number)
    one, mine = random_listed_pattern(pick, depth - 1)
    if pick((False, False, False, True)):
        return f"!({one})", lambda x: not mine(x)
    other, its = random_listed_pattern(pick, pick(range(depth)))
    match pick("&&|?h"):
        case "&":
            return f"({one}) & ({other})", lambda x: mine(x) and its(x)
        case "|":
            return f"({one}) | ({other})", lambda x: mine(x) or its(x)
        case "?":
            third, of_third = random_listed_pattern(pick, 0)
            return f"({one} ? {other} : {third})", lambda x: its(x) if mine(x) else of_third(x)
        case _:
            return f"by_head [{one}, {other}]", lambda x: its(x) if x.h % 2 else mine(x)


def listed_spec(pattern: str, first: int = 0, low: int = 0, more: tuple[str, ...] = ()) -> str:
    """The text of a spec with this pattern and more lines, in which `first` and `low` are those of the call."""
    read = {word for each in (pattern, *more) for word in re.findall(r"[a-z_]+", each)}
    if "shift" in read:
        read.add("doc")
    declared = [text for name, text in DECLARED.items() if name in read]
    lets = ["let shift = doc[i] - doc[j]"] * ("shift" in read)
    lines = "".join(f"  {line}\n" for line in (*declared, *lets, f"pattern = {pattern}", *more))
    return f"{_WORDS}attention random(first = {first}, low = {low}) {{\n{lines}}}\n"
