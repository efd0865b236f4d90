"""A plan at given sizes → everything that `explain` tells, as plain values with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from attncc.graph.ir import Graph, show
from attncc.plan.cost import Cost, Formula, Pass, cost, formula, value
from attncc.plan.decoder import Decoder, decoder_of
from attncc.plan.density import Call, Density, density, density_of_piece, heads_where, members, together
from attncc.plan.describe import by_coordinates, decoder_text, interval_text, layout_text, plan_sentence
from attncc.plan.int32 import longest_call
from attncc.plan.later_choices import later_choices
from attncc.plan.linear_cost import linear_cost
from attncc.plan.list_steps import keys_text, rows_text, runs_text
from attncc.plan.lists import Lists, Named
from attncc.plan.lists import Pass as ListPass
from attncc.plan.model import Mixture, Plan
from attncc.plan.pieces import Part, Pieces
from attncc.plan.ranges import Domain, HeadClass, Segment
from attncc.spec.choices import choices_of
from attncc.spec.data import axis_text
from attncc.spec.expr import TRUE, Name, names_in
from attncc.spec.model import Align, Spec
from attncc.spec.text import text

ELEMENT_BYTES = 2
TILE = (128, 64)  # rows and columns of the tiles that are counted


def of_branches(mixture: Mixture, n: int, m: int, heads: int, d: int, e: int) -> dict[str, Any]:
    """What was derived for each branch, under its name, and what their outputs are combined to."""
    spec = mixture.spec
    assert spec.combine is not None
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "summary": spec.summary,
        "parameters": {each.name: each.value for each in spec.parameters},
        "data": _data(spec),
        "combine": text(spec.combine),
        "branches": {name: explanation(plan, n, m, heads, d, e) for name, plan in mixture.branches},
    }


def explanation(plan: Plan, n: int, m: int, heads: int, d: int, e: int) -> dict[str, Any]:
    """What was derived and what it costs; only plain values, ready for JSON."""
    sizes = {"n": n, "m": m, "H": heads, "d": d, "e": e, "b": ELEMENT_BYTES}
    spec = plan.spec
    choice = _Choice(plan, Call(n, m, heads, 0 if spec.align is Align.START else m - n, TILE))
    return {
        "name": spec.name,
        "spec": spec.source.name,
        "summary": spec.summary,
        "parameters": {each.name: each.value for each in spec.parameters},
        "sizes": {"n": n, "m": m, "heads": heads, "d": d, "e": e, "element_bytes": ELEMENT_BYTES},
        "data": _data(spec),
        "choices": {each.name: text(each.let.value) for each in choices_of(spec)},
        "meaning": {
            "pattern": text(spec.pattern),
            "score": text(spec.score) if _reads_score(spec) else None,
            "weight": text(spec.weight),
            "normalize": text(spec.normalizer),
            "align": spec.align.value,
        },
        "plan": plan_sentence(plan.domain, plan.pieces, plan.lists),
        "derivation": [
            {"law": each.law, "statement": each.statement, "before": list(each.before), "after": list(each.after)}
            for each in plan.steps
        ],
        "not_applied": [asdict(each) for each in plan.refusals],
        "graphs": {
            "dense": _lines(plan.dense),
            "forward": _lines(plan.torch.forward),
            "backward": _lines(plan.torch.backward),
        },
        "head_classes": [
            _head_class(each, own) for each, own in zip(plan.domain.classes, members(heads, plan.domain), strict=True)
        ],
        "later_choices": later_choices(plan) or None,
        "decoder": _decoder(decoder_of(plan)),
        "longest_call": longest_call(plan),
        "pieces": _pieces(plan.pieces, choice, heads),
        "lists": None if plan.lists is None else [_pass_of_lists(each) for each in plan.lists.passes],
        "tiles": _tiles(choice.taken),
        "cost": _cost(plan, sizes, choice),
        "linear": _linear(plan, sizes),
        "saved": {
            "row_numbers": list(plan.saved),
            "out": plan.reads_delta,
            "derived": {each.name: each.kind.value for each in plan.core.derived},
        },
        "autotune": [
            {
                "kernel": each.kernel,
                "element_bytes": each.bytes,
                "width": each.width,
                "tries": [asdict(tile) for tile in each.tries],
                "with_sums": None if plan.states is None else asdict(each.chunk),
            }
            for each in plan.tiles
        ],
    }


def _data(spec: Spec) -> list[dict[str, Any]]:
    """What the emitted function takes, in order."""
    return [
        {
            "name": each.name,
            "role": each.role.value,
            "axes": [axis if isinstance(axis, int) else axis_text(axis) for axis in each.axes],
            "whole": each.whole,
            "truth": each.truth,
            "ascending": each.ascending,
            "initial": each.initial,
        }
        for each in spec.data
    ]


def _decoder(found: Decoder | str) -> dict[str, str | None]:
    """What a decoder keeps of the tokens so far, or why there is none."""
    if isinstance(found, str):
        return {"keeps": None, "refused": found}
    return {"keeps": decoder_text(found), "refused": None}


def _reads_score(spec: Spec) -> bool:
    return any(Name.SCORE in names_in(expr) for expr in (spec.weight, spec.normalizer))


def _lines(graph: Graph) -> list[str]:
    return [line.rstrip() for line in show(graph).splitlines()]


def _head_class(one: HeadClass, heads: tuple[int, ...]) -> dict[str, Any]:
    return {
        "condition": text(one.condition),
        "is_every_head": one.condition == TRUE,
        "heads": list(heads),
        "pattern": text(one.pattern),
        "facts": asdict(one.facts),
        "by_row": [_segment(each, "keys") for each in one.by_row],
        "by_column": [_segment(each, "rows") for each in one.by_column],
    }


def _segment(segment: Segment, what: str) -> dict[str, Any]:
    full = segment.full
    return {
        "touched": interval_text(segment.touched, what),
        "full": None if full is None else interval_text(full, what),
        "when": text(segment.touched.when),
    }


class _Choice:
    """What a call may do, and what it does: the pattern as a whole, its pieces, or every pair."""

    def __init__(self, plan: Plan, call: Call) -> None:
        pieces = plan.pieces
        self.call = call
        self.keys = call.m if plan.spec.blocks is None else -(-call.m // plan.spec.blocks.stride)
        self.lists = plan.lists is not None
        self.refusal = next((each.reason for each in plan.refusals if each.law == "split-union"), "")
        self.least = 0 if pieces is None else pieces.least
        self.by_piece = () if pieces is None else tuple(density_of_piece(each, call) for each in pieces.pieces)
        self.pieces = together((each, 1) for each in self.by_piece) if self.by_piece else None
        self.whole = density(plan.domain, call, self.pieces.pairs if self.pieces else None)
        if plan.lists is not None:
            self.whole = replace(self.whole, pairs=min(self.whole.pairs, _most_pairs(plan.lists, call)))
        self.in_pieces = self.pieces is not None and call.m >= self.least

    @property
    def taken(self) -> Density:
        """The counts of what runs."""
        return self.pieces if self.in_pieces and self.pieces else self.whole

    def candidates(self) -> list[tuple[str, bool, Density]]:
        """Each with a name, and whether it is what runs."""
        rows, columns = self.call.tile
        row_tiles = self.call.heads * -(-self.call.n // rows)
        tiles = row_tiles * -(-self.keys // columns)
        every = Density(rows, columns, tiles, 0, tiles, self.whole.pairs, row_tiles, self.whole.exact)
        if self.lists:  # how many are met is not known: what positions allow is a bound
            return [("lists", True, self.whole), ("dense", False, replace(every, pairs=every.scores))]
        found = [("whole", not self.in_pieces, self.whole), ("dense", False, every)]
        return found if self.pieces is None else [("pieces", self.in_pieces, self.pieces), *found]

    def sentence(self) -> str:
        """What the pattern runs as at these lengths, and why."""
        n, m = self.call.n, self.call.m
        if self.lists:
            return "tiles are listed when data are known: no call visits more than its data ask for"
        if self.pieces is None:
            return f"at n = {n}, m = {m} the pattern runs as a whole: {self.refusal}"
        scores = f"{self.pieces.waste:.2f} scores for each related pair in {self.pieces.row_tiles:,} tiles of rows"
        others = f"{self.whole.waste:.2f} in {self.whole.row_tiles:,}"
        if self.in_pieces:
            return f"at n = {n}, m = {m} the pattern runs in pieces: {scores}; as a whole {others}"
        reason = f"pieces pay from {self.least:,} keys on"
        return f"at n = {n}, m = {m} the pattern runs as a whole: {reason} (here {scores}; as a whole {others})"


def _most_pairs(lists: Lists, call: Call) -> int:
    """What positions allow the parts of a pattern, and lists of rows, which have so many entries."""
    total = 0
    for runs in (each for one in lists.passes for each in one.runs):
        by_rows = [call.heads * call.n * each.entries * each.width for each in runs.blocks if isinstance(each, Named)]
        total += min([density(Domain(runs.classes), call).pairs, *by_rows])
    return total


def _tiles(found: Density) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(found).items() if name != "small"}
    return counts | {"scores": found.scores, "waste": round(found.waste, 4)}


def _pieces(pieces: Pieces | None, choice: _Choice, heads: int) -> dict[str, Any] | None:
    """The pieces in the order in which they run, or None."""
    if pieces is None:
        return None
    return {
        "least_keys": pieces.least,
        "run": choice.in_pieces,
        "chained": pieces.chained,
        "pieces": [
            {"parts": [_part(part, heads) for part in piece.parts], "tiles": _tiles(found)}
            for piece, found in zip(pieces.pieces, choice.by_piece, strict=True)
        ],
    }


def _pass_of_lists(one: ListPass) -> dict[str, Any]:
    """How rows and keys of a pass stand, and which keys its lists name."""
    return {
        "pattern": text(one.pattern),
        "rows": rows_text(one),
        "keys": keys_text(one),
        "lists": [f"{text(each.pattern)}: {runs_text(each)}" for each in one.runs],
    }


def _part(part: Part, heads: int) -> dict[str, Any]:
    layout = part.layout
    return {
        "condition": text(part.one.condition),
        "is_every_head": part.one.condition == TRUE,
        "heads": list(heads_where(part.one.condition, heads)),
        "pattern": text(part.pattern),
        "alone": part.alone,
        "layout": {
            "text": layout_text(layout),
            "plain": layout.is_plain,
            "classes": layout.classes,
            "rows": asdict(layout.rows),
            "keys": asdict(layout.keys),
        },
        "by_coordinates": by_coordinates(part),
        "by_row": [_segment(each, "keys") for each in part.one.by_row],
        "by_column": [_segment(each, "rows") for each in part.one.by_column],
    }


def _cost(plan: Plan, sizes: Mapping[str, int], choice: _Choice) -> dict[str, Any]:
    found = cost(plan, choice.in_pieces)
    blocks = plan.spec.blocks
    pairs = [None if each is None else formula(each) for _, each in found.pairs]
    visited = choice.taken.scores
    return {
        "choice": choice.sentence(),
        "candidates": [
            {
                "name": name,
                "runs": runs,
                "scores": each.scores,
                "waste": round(each.waste, 4),
                "row_tiles": each.row_tiles,
                "forward_flops": each.scores * value(found.forward.flops_per_pair, sizes),
                "backward_flops": each.scores * value(found.backward.flops_per_pair, sizes),
            }
            for name, runs, each in choice.candidates()
        ],
        "visited_pairs": {"formulas": pairs, "value": visited},
        "forward": _pass(found, found.forward, sizes, visited),
        "backward": _pass(found, found.backward, sizes, visited),
        "saved_bytes": {"formula": formula(found.saved), "value": value(found.saved, sizes)},
        "dense_matrix_bytes": {
            "formula": "H·n·m·b" if blocks is None else f"H·n·m/{blocks.stride}·b",
            "value": sizes["H"] * sizes["n"] * choice.keys * sizes["b"],
        },
    }


def _linear(plan: Plan, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """What sums by states cost, or None."""
    found = linear_cost(plan)
    if found is None:
        return None
    crossover = None
    if found.crossover is not None:
        crossover = {"formula": formula(found.crossover), "value": value(found.crossover, sizes)}
    return {
        "features": {"formula": formula(found.features), "value": value(found.features, sizes)},
        "block": plan.slabs.block,
        "blocks_at_ends": found.ends,
        "forward_flops": {"formula": formula(found.flops), "value": value(found.flops, sizes)},
        "crossover": crossover,
    }


def _pass(found: Cost, one: Pass, sizes: Mapping[str, int], visited: int) -> dict[str, Any]:

    def of_pairs(per_pair: Formula) -> dict[str, Any]:
        total = found.total(per_pair)
        return {
            "formula": None if total is None else formula(total),
            "value": visited * value(per_pair, sizes),
        }

    return {
        "flops_per_pair": formula(one.flops_per_pair),
        "flops": of_pairs(one.flops_per_pair),
        "channels_per_pair": formula(one.channels_per_pair),
        "channels": of_pairs(one.channels_per_pair),
        "bytes": {"formula": formula(one.bytes), "value": value(one.bytes, sizes)},
    }
