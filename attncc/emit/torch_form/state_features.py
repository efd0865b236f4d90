"""States → the functions that turn tokens into features, relative to a key near by where these decay."""

from __future__ import annotations

from attncc.emit.torch_form.state_texts import StateTexts
from attncc.emit.writer import Writer
from attncc.rewrite.separable import Exponent, Term
from attncc.spec.expr import Const, Expr, Vector, walk


class FeaturePrinter(StateTexts):
    """Prints what queries and keys give to each term."""

    def _print_row_features(self, writer: Writer) -> None:
        i = "i, " if self.rows.reads_position else ""
        near = "near, " if self.near else ""
        with writer.block(f"def _row_features({self.row_names}{i}{near}numbers, shape):"):
            writer.line('"""What queries give to each term, [batch * heads, group * rows, features]."""')
            self.print_unpacking(writer, (each for term in self.states.terms for each in self._row_parts(term)))
            for at, term in enumerate(self.states.terms):
                writer.line(f"f{at} = {self._row_feature(term)}")
            writer.line(f"return {self._tuple('_by_state({}, shape)')}")

    def _print_key_features(self, writer: Writer) -> None:
        j = "j, " if self.keys.reads_position else ""
        near = "near, " if self.near else ""
        heads = ", heads" if self.states.by_query_head else ""
        with writer.block(f"def _key_features({self.key_names}{j}{near}numbers{heads}):"):
            writer.line('"""What keys give to each term, [batch * heads, keys, features]."""')
            self.print_unpacking(writer, (each for term in self.states.terms for each in self._key_parts(term)))
            if self.states.by_query_head:
                self.used.add("_of_heads")
                for each in self.keys.operands:
                    writer.line(f"{each.name} = _of_heads({each.name}, heads)")
            for at, term in enumerate(self.states.terms):
                writer.line(f"f{at} = {self._key_feature(term)}")
            writer.line(f"return {self._tuple('{}.flatten(0, 1)')}")

    def _tuple(self, template: str) -> str:
        names = [template.format(f"f{at}") for at in range(len(self.states.terms))]
        return f"{', '.join(names)}{',' * (len(names) == 1)}" if len(names) > 1 else f"({names[0]},)"

    def _row_feature(self, term: Term) -> str:
        return self._feature(
            [each.row for each in term.factors],
            [each.exponent for each in term.factors],
            [each.key == Const(1) for each in term.factors],
            term.row,
            term.exponent,
            of_row=True,
        )

    def _key_feature(self, term: Term) -> str:
        return self._feature(
            [each.key for each in term.factors],
            [each.exponent for each in term.factors],
            [each.row == Const(1) for each in term.factors],
            term.key,
            term.exponent,
            of_row=False,
        )

    def _feature(
        self,
        factors: list[Expr],
        exponents: list[Exponent],
        alone: list[bool],
        coefficient: Expr,
        exponent: Exponent,
        *,
        of_row: bool,
    ) -> str:
        """A product of vectors' formulas, times numbers."""
        texts = self.row_texts if of_row else self.key_texts
        vectors = []
        for formula, own, one_sided in zip(factors, exponents, alone, strict=True):
            if formula == Const(1) and own.is_zero:
                continue  # the other side's formula is summed by itself
            written = self.plain(texts, formula, 5 if own.is_zero else 6)
            if not own.is_zero:
                written = f"{written} * {self._power(own, of_row=of_row)}"
            vectors.append(f"({written}).sum(-1, keepdim=True)" if one_sided else written)
        numbers = [] if coefficient == Const(1) else [self.plain(texts, coefficient, 6)]
        if not exponent.is_zero:
            numbers.append(self._power(exponent, of_row=of_row))
        if not vectors:
            carrier = self.operands.core.rows if of_row else self.operands.core.values
            self.used.add("_ones")
            return " * ".join([f"_ones({carrier})", *numbers])
        while len(vectors) > 1:
            self.used.add("_outer")
            vectors[:2] = [f"_outer({vectors[0]}, {vectors[1]})"]
        return " * ".join([vectors[0], *numbers])

    def _power(self, exponent: Exponent, *, of_row: bool) -> str:
        """e to the part of an exponent that one side has, relative to a key near by."""
        texts = self.row_texts if of_row else self.key_texts
        parts = []
        if exponent.slope is not None:
            distance = "i - near.at" if of_row else "near.at - j"
            parts.append(f"{self.plain(texts, exponent.slope, 6)} * ({distance}).to({texts.rows}.dtype)")
        for row, key in exponent.differences:  # each by itself: whole numbers that are subtracted are exact
            at = self.moving.index(key)
            if of_row:
                self.used.add("_of_heads")
                parts.append(f"({self.plain(texts, row, 5)} + _of_heads(near.keys[{at}], shape[1]))")
            else:
                parts.append(f"({self.plain(texts, key, 5)} - near.keys[{at}])")
        return f"torch.exp({' + '.join(parts)})"

    def _print_near(self, writer: Writer) -> None:
        heads = ", heads" if self.states.by_query_head else ""
        with writer.block(f"def _near({self.key_names}at, numbers{heads}):"):
            writer.line('"""The key that features are relative to: its position and its exponents."""')
            if not self.moving:
                writer.line("return _Near(at, ())")
                return
            self.print_unpacking(writer, self.moving)
            if self.states.by_query_head:
                for each in self.keys.operands:
                    writer.line(f"{each.name} = _of_heads({each.name}, heads)")
            written = [self.plain(self.key_texts, each) for each in self.moving]
            writer.line(f"return _Near(at, ({', '.join(written)}{',' * (len(written) == 1)}))")

    def _print_moved(self, writer: Writer) -> None:
        with writer.block("def _moved(states, start, end, numbers):"):
            writer.line('"""Sums over keys relative to one key, as sums relative to another."""')
            with writer.block("if start is end:"):
                writer.line("return states")
            self.print_unpacking(
                writer, (each.slope for term in self.states.terms for each in term.exponents if each.slope is not None)
            )
            names = [f"s{at}" for at in range(len(self.pairs()))]
            writer.line(f"{', '.join(names)}{',' * (len(names) == 1)} = states")
            moves = [self._move(term) for term in self.states.terms]
            for at, move in enumerate(moves):
                if move is not None:
                    writer.line(f"move{at} = {move}")
            found = []
            for at, (_, term) in enumerate(self.pairs()):
                found.append(f"s{at} * move{term}" if moves[term] is not None else f"s{at}")
            writer.line(f"return {', '.join(found)}{',' * (len(found) == 1)}")

    def _move(self, term: Term) -> str | None:
        """The factor of a term's states, for [batch * heads, features, width]."""

        def of(exponent: Exponent) -> str:
            parts = []
            if exponent.slope is not None:
                parts.append(f"{self.plain(self.key_texts, exponent.slope, 6)} * (end.at - start.at)")
            for _, key in exponent.differences:
                at = self.moving.index(key)
                parts.append(f"(start.keys[{at}] - end.keys[{at}])")
            return " + ".join(parts)

        if all(each.is_zero for each in term.exponents):
            return None
        vectors = []
        for factor in term.factors:
            ones = f"torch.ones_like({_some_vector(factor.key)})" if factor.exponent.is_zero else ""
            vectors.append(ones or f"torch.exp({of(factor.exponent)})")
        has_vectors = any(not each.exponent.is_zero for each in term.factors)
        parts = []
        if has_vectors:
            while len(vectors) > 1:
                self.used.add("_outer")
                vectors[:2] = [f"_outer({vectors[0]}, {vectors[1]})"]
            parts.append(vectors[0])
        if not term.exponent.is_zero:
            parts.append(f"torch.exp(torch.as_tensor({of(term.exponent)}, dtype=torch.float64))")
        self.used.add("_as_factor")
        return f"_as_factor({' * '.join(parts)}, s0)"


def _some_vector(expr: Expr) -> str:
    return next(each.name for each in walk(expr) if isinstance(each, Vector))
