"""Operands that are derived from what the caller gives → plain torch operations, token by token.

Within the function vectors are [batch, heads, tokens, width] and numbers [batch, heads, tokens, 1], where an axis that
a value does not depend on may be 1. Numbers of distances have a token for each distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attncc.emit.operands import Operands
from attncc.emit.prologue.pairs import Facts, can_check, print_check
from attncc.emit.prologue.sizes import Sizes
from attncc.emit.prologue.tokens import TokenWriter
from attncc.emit.prologue.within import proven
from attncc.emit.writer import Writer
from attncc.graph.core import Kind, Operand
from attncc.plan.decoder import keeps_blocks
from attncc.plan.model import Mixture, Plan
from attncc.spec.choices import is_choice
from attncc.spec.data import Axis, Data, Size
from attncc.spec.expr import (
    AtRow,
    Channel,
    Entry,
    Expr,
    Let,
    Local,
    MatMul,
    Merge,
    Name,
    Output,
    OverKeys,
    Pooled,
    Shares,
    Token,
    Top,
    Vector,
    names_in,
    substitute,
    walk,
)
from attncc.spec.sides import Side, side_of
from attncc.spec.text import text as spec_text

_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER)
_SHAPES = ("_vectors", "_numbers_of", "_exact_of", "_positions", "_hidden", "_visible")


class Prologue:
    """Prints the function that computes operands.

    Args:
        optional: data that may be anything of the right type, because only sums over weights read them.
        carries: whether running sums may go on from those of earlier tokens.
        keeps: whether blocks of keys that are full may be kept from one call to the next.
    """

    def __init__(
        self,
        plan: Plan,
        operands: Operands,
        optional: frozenset[str] = frozenset(),
        *,
        carries: bool = False,
        keeps: bool = False,
    ) -> None:
        self.plan = plan
        self.carries = carries
        self.keeps = keeps and any(
            keeps_blocks(part) for each in plan.chosen for part in (each.plan, each.among) if part is not None
        )
        self.carried = 0  # how many running sums there are
        self.defers = False  # whether formulas of single vectors may be left for those who read them
        self.operands = operands
        self.sizes = Sizes(plan.spec, optional)
        self.keys = "m" if plan.spec.blocks is None else "blocks"
        self.used: set[str] = set()

    def text(self) -> str:
        """The function, or nothing where the passes take what the caller gives."""
        if self.operands.given:
            return ""
        body = Writer()
        tokens = TokenWriter(body, self.plan, self.operands, carries=self.carries)
        returned = [self._operand(each, body, tokens) for each in self.operands]
        self._check_tables(tokens, dict(zip(self.operands.names, returned, strict=True)))
        self.carried = tokens.carried
        out = Writer()
        scale = "scale, " if self.plan.spec.reads_scale else ""
        places = "q_start, k_start, q_starts, kv_lengths" + ", carried=None" * bool(self.carried)
        places += ", defer=False" * self.defers
        places += ", choices=None" * bool(tokens.choices)
        places += ", kept=None" * self.keeps
        with out.block(f"def _operands({', '.join(self.operands.data)}, {scale}{places}):"):
            out.line('"""What the passes read: what each token and each distance determines alone."""')
            place = out.place
            self._print_start(out)
            if " @ " in body.text():
                with out.block(f"with torch.autocast({self.sizes.rows.name}.device.type, enabled=False):"):
                    out.lines(body.text())
            elif body.place:
                out.lines(body.text())
            out.line(f"return {', '.join(returned)}{',' * (len(returned) == 1)}")
            out.drop_unread(place)
        self.used |= tokens.used
        text = out.text()
        self.used |= {name for name in _SHAPES if f"{name}(" in text}
        return text

    def distances(self) -> str:
        """The function that computes numbers of distances alone, for rows and keys that are not all at hand."""
        body = Writer()
        tokens = TokenWriter(body, self.plan, self.operands)
        own = self.operands.core.of_kind(Kind.OFFSET_NUMBER)
        returned = [self._operand(each, body, tokens) for each in own]
        out = Writer()
        scale = "scale, " if self.plan.spec.reads_scale else ""
        tokens.choices = {}
        with out.block(f"def _distances({', '.join(self.operands.data)}, {scale}q_start, k_start, n, m):"):
            out.line('"""What distances determine, for n rows from one position on and m keys from another on."""')
            place = out.place
            self._print_start(out, in_call=False)
            out.lines(body.text())
            out.line(f"return {', '.join(returned)}{',' * (len(returned) == 1)}")
            out.drop_unread(place)
        self.used |= tokens.used
        return out.text()

    def _print_start(self, out: Writer, *, in_call: bool = True, typed: str = "") -> None:
        """Sizes and positions; what nothing reads is dropped afterwards. `typed`: what has the type of the result."""
        sizes, rows = self.sizes, self.sizes.rows.name
        out.line(f"batch = {sizes[Size.BATCH]}")
        out.line(f"heads = {sizes[Size.HEADS]}")
        out.line(f"kv_heads = {'heads' if self.operands.core.spread_heads else sizes.kv_heads}")
        if in_call:
            out.line(f"n = {sizes[Size.QUERIES]}")
            out.line(f"m = {sizes[Size.KEYS]}")
        out.line(f"d = {sizes[Size.WIDTH]}")
        out.line(f"e = {sizes[Size.VALUE_WIDTH]}")
        out.line(f"dtype = {typed or rows}.dtype")
        out.line("wide = _wide(dtype)")
        out.line(f"device = {rows}.device")
        out.line("head = torch.arange(heads, device=device)[:, None, None]")
        out.line("i = _positions(n, q_start, q_starts, device)")
        out.line("j = _positions(m, k_start, None, device)")
        if (made := self.plan.spec.blocks) is not None:
            out.line(f"blocks = -(-m // {made.stride})")
            out.line(f"block = _positions(blocks, k_start // {made.stride}, None, device)")
        starts = "q_starts" if in_call else "None"
        out.line(f"distance = _positions(n + m, q_start - k_start - m + 1, {starts}, device)")
        out.line("hidden = _hidden(kv_lengths, m, device)")
        out.line("valid = _visible(kv_lengths, m, device)")

    # --- operands ---------------------------------------------------------------------------------------------

    def _operand(self, operand: Operand, body: Writer, tokens: TokenWriter) -> str:
        """The text of an operand, after what it is computed by has been printed."""
        if self.operands.is_whole_vector(operand):
            assert operand.source is not None
            return operand.source
        if operand.kind is Kind.TABLE:
            source = operand.source or operand.name
            return source if self.operands.is_whole(operand) else f"{source}.to(wide)"
        if operand.kind.is_fact:
            return self._fact(operand, body, tokens)
        if operand.source is not None:
            in_dtype = {"as_given": True} if operand.exact else {"in_dtype": True}
            return _shaped(operand, tokens.aligned(self.operands.data[operand.source], **in_dtype), self.keys)
        assert operand.value is not None
        like = None if operand.like is None else self.plan.core[operand.like]
        wide = None if like is None else like.value or Vector(like.source or like.name)
        written = tokens.root(operand.value, operand.kind, wide)
        alone = _only_vector(operand.value) if operand.kind.is_vector and self.plan.states is not None else None
        if alone is None:
            body.line(f"{operand.name} = {_shaped(operand, written, self.keys)}")
            return operand.name
        self.used |= {"_features", "_vectors"}
        self.defers = True
        name = tokens.given(self.operands.data[alone])
        formula = written.removesuffix(f"({name})")
        formula = formula if formula.isidentifier() else f"lambda {name}: {written}"
        shape = _shaped(operand, f"{formula}, {name}").removeprefix("_vectors(").removesuffix(")")
        body.line(f"{operand.name} = _features({shape}, defer)")
        return operand.name

    def _fact(self, operand: Operand, body: Writer, tokens: TokenWriter) -> str:
        """The text of what the pattern asks of a token, in a type of its own."""
        if operand.source is not None:
            data = self.operands.data[operand.source]
            places = [Size.BATCH, Size.HEADS, Size.KEYS if data.is_column else Size.QUERIES]
            index = ", ".join(":" if place in data.axes else "None" for place in places)
            written = data.name if index == ":, :, :" else f"{data.name}[{index}]"
            heads_differ = Size.HEADS in data.axes
        elif isinstance(operand.value, Let) and isinstance(operand.value.value, Top):
            top = operand.value.value
            body.line(f"{operand.name} = {self._keys(operand.value.name, top, body, tokens)}")
            if top.grouped:
                self.used.add("_facts_of_heads")
                return f"_facts_of_heads({operand.name}, heads)"
            return operand.name
        else:
            assert operand.value is not None
            text = tokens.root(operand.value, operand.kind, None)
            body.line(f"{operand.name} = {text if text.isidentifier() else f'({text})'}[..., 0]")
            written = operand.name
            heads_differ = True
        if operand.kind is Kind.COLUMN_FACT and heads_differ:
            self.used.add("_facts_of_heads")
            return f"_facts_of_heads({written}, heads)"
        return written

    def _keys(self, name: str, top: Top, body: Writer, tokens: TokenWriter) -> str:
        """The text of the keys that rows choose, [batch, heads or kv heads, n, entries]."""
        tokens.used |= {"_chosen_keys", "_best"}
        chosen = next(each for each in self.plan.chosen if each.choice == name)
        data = ", ".join(self.operands.data)
        inner = [node for each in (top.by, top.among) for node in walk(each) if is_choice(node)]
        known = ", ".join(
            f'"{each.name}": {tokens.choice(each)}' for each in dict.fromkeys(inner) if isinstance(each, Let)
        )
        places = "kv_lengths=kv_lengths, q_start=q_start if q_starts is None else q_starts, k_start=k_start"
        places += f", choices={{{known}}}" * bool(inner)
        heads = self.sizes.kv_heads if top.grouped else "heads"
        made = f"made_{name}"
        with body.block(f"def {made}():"):
            for part, plan in (("numbers", chosen.plan), ("among", chosen.among)):
                if plan is not None:
                    scale = "scale=scale, " if plan.spec.reads_scale else ""
                    kept = ", kept=kept" * (self.keeps and keeps_blocks(plan))
                    body.line(f"{part} = {function_of(name, part)}({data}, {scale}{places}{kept})")
            keys, first = ("m", "k_start") if top.block == 1 else (f"-(-m // {top.block})", f"k_start // {top.block}")
            of_rows = self._of_rows(top, heads, keys, tokens, adds=chosen.among is not None)
            body.line(
                f"return _best({of_rows}, {top.count}, batch, {heads}, n, {keys}, {first}, device{_each(top, heads)})"
            )
        return f'_chosen_keys(choices, "{name}", {made})'

    @staticmethod
    def _of_rows(top: Top, heads: str, keys: str, tokens: TokenWriter, *, adds: bool) -> str:
        """The text of a function that gives the numbers of entries for a slice of rows."""
        parts = ["numbers(rows)", *["among(rows)"] * adds]
        if top.grouped:
            tokens.used.add("_over_groups")
            parts = [f"_over_groups({each}, heads, {heads})" for each in parts]
        if isinstance(top.by, Shares) and (top.block > 1 or top.by.width):
            tokens.used.add("_summed_blocks")
            step = top.block // top.by.stride
            overlaps = overlaps_of(top.by, top.block)
            more = "" if set(overlaps) == {1.0} else f", ({', '.join(map(str, overlaps))})"
            parts[0] = f"_summed_blocks({parts[0]}, {keys}, {step}{more})"
        return "numbers" if parts == ["numbers(rows)"] else f"lambda rows: {' + '.join(parts)}"

    # --- indices of pairs -------------------------------------------------------------------------------------

    def _check_tables(self, tokens: TokenWriter, texts: Mapping[str, str]) -> None:
        """Indices are checked here; those that vectors or other tables decide stay within tables as they are."""
        core = self.plan.core
        values: dict[Expr, Expr] = {Local(each.name): each.formula for each in core.operands}
        entries = [
            each
            for field in (core.score, core.weight, core.normalizer, core.pattern)
            for each in walk(field)
            if isinstance(each, Entry)
        ]
        of_pattern = {each for each in walk(core.pattern) if isinstance(each, Entry)}
        facts = Facts(
            tuple(each.name for each in self.operands.facts),
            {each.name: texts[each.name] for each in core.of_kind(Kind.ROW_FACT)},
            {each.name: texts[each.name] for each in core.of_kind(Kind.COLUMN_FACT)},
        )
        for entry in dict.fromkeys(entries):
            source = core[entry.name].source or entry.name
            for index, axis, place in indexed(entry, self.operands.data[source]):
                given = substitute(index, values)
                side = side_of(given, self.operands.data)
                if proven(index, axis):
                    continue
                if side is not Side.PAIR:
                    tokens.checked(source, given, axis, place, of_distance=side is Side.OFFSET)
                elif can_check(given) and entry not in of_pattern:
                    print_check(tokens, self.operands.data, source, given, place, facts)


def _each(top: Top, heads: str) -> str:
    """The argument that says of how many numbers one of those that are compared is made."""
    step = top.block // top.by.stride if isinstance(top.by, Shares) else 1
    parts = [str(step)] * (step > 1) + [f"heads // {heads}"] * top.grouped
    return f", each={' * '.join(parts)}" if parts else ""


def function_of(choice: str, part: str) -> str:
    """The function that computes the `numbers` by which keys are chosen, or which keys they are `among`."""
    return f"_{part}_for_{choice}"


def overlaps_of(shares: Shares, block: int) -> list[float]:
    """How much of each block that is given shares lies in one that is chosen, from the first that reaches into it."""
    width, stride = max(shares.width, 1), shares.stride
    begins = range(-((width - 1) // stride) * stride, block, stride)
    return [(min(begin + width, block) - max(begin, 0)) / width for begin in begins]


def indexed(entry: Entry, data: Data, features: int = 0) -> list[tuple[Expr, Axis, int]]:
    """The indices of an entry, each with the axis that it is for and the axis's place."""
    axes = list(enumerate(data.axes))
    if len(entry.indices) + features < len(axes) and data.axes[0] is Size.BATCH:
        axes = axes[1:]  # an entry is of its own batch entry
    return [(index, axis, place) for index, (place, axis) in zip(entry.indices, axes, strict=False)]


def _branches(node: Expr) -> tuple[str, ...]:
    """The branches of which a node is the output."""
    match node:
        case Output(branch=branch):
            return (branch,)
        case Merge(branches=branches):
            return branches
        case _:
            return ()


def _only_vector(expr: Expr) -> str | None:
    """The vector of each token that alone decides a value, if nothing else does, nor is any of it named."""
    nodes = list(walk(expr))
    names = {each.name for each in nodes if isinstance(each, Vector)}
    others = (Let, Entry, Token, Channel, OverKeys, Pooled, AtRow, MatMul, Local, Output, Merge)
    if len(names) != 1 or names_in(expr) - {Name.WIDTH} or any(isinstance(each, others) for each in nodes):
        return None
    return names.pop()


def _shaped(operand: Operand, text: str, keys: str = "m") -> str:
    """A value with every axis of its kind."""
    match operand.kind:
        case Kind.ROW_VECTOR:
            return f"_vectors({text}, batch, heads, n, {'wide' if operand.wide else 'dtype'})"
        case Kind.COLUMN_VECTOR:
            return f"_vectors({text}, batch, kv_heads, {keys}, {'wide' if operand.wide else 'dtype'})"
        case Kind.ROW_NUMBER if operand.exact:
            return f"_exact_of({text}, batch, heads, n)"
        case Kind.COLUMN_NUMBER if operand.exact:
            return f"_exact_of({text}, batch, kv_heads, {keys})"
        case Kind.ROW_NUMBER:
            return f"_numbers_of({text}, batch, heads, n, wide, device)"
        case Kind.COLUMN_NUMBER:
            return f"_numbers_of({text}, batch, kv_heads, {keys}, wide, device)"
        case _:
            return f"_numbers_of({text}, -1, heads, -1, wide, device)"


class CombinedOutputs(Prologue):
    """Prints the function that makes one vector of those that branches give."""

    def __init__(self, mixture: Mixture) -> None:
        plan = replace(mixture.branches[0][1], spec=mixture.spec)
        super().__init__(plan, Operands(mixture.spec, plan.core), frozenset())
        assert mixture.spec.combine is not None
        self.combine = mixture.spec.combine
        read = {name for node in walk(self.combine) for name in _branches(node)}
        self.branches = [name for name, _ in mixture.branches if name in read]
        merged = {name for node in walk(self.combine) if isinstance(node, Merge) for name in node.branches}
        self.outputs = [*self.branches, *(f"{name}_lse" for name in self.branches if name in merged)]

    def text(self) -> str:
        """The function."""
        body = Writer()
        tokens = TokenWriter(body, self.plan, self.operands)
        written = tokens.root(self.combine, Kind.ROW_VECTOR)
        out = Writer()
        scale = "scale, " if self.plan.spec.reads_scale else ""
        arguments = ", ".join((*self.outputs, *self.operands.data))
        with out.block(f"def _combined({arguments}, {scale}q_start, k_start, q_starts, kv_lengths):"):
            out.line(f'"""{spec_text(self.combine)}"""')
            place = out.place
            self._print_start(out, typed=next(iter(self.outputs), ""))  # autocast has given outputs another one
            if body.place:
                out.lines(body.text())
            if isinstance(self.combine, Merge):
                out.line(f"out, lse = {written.removesuffix('[0]')}")
                out.line("return out.to(dtype), lse")
            else:
                out.line(f"return ({written}).to(dtype)")
            out.drop_unread(place)
        text = out.text()
        self.used |= tokens.used
        self.used |= {name for name in ("_positions", "_hidden", "_visible") if f"{name}(" in text}
        return text
