"""The kernel that finds what sums give to the gradients of what the features of a tile's tokens are made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from attncc.emit.features import Feature, Power
from attncc.emit.triton_form.scope import BLOCK, START, is_vector
from attncc.emit.triton_form.sums.scope import leaves, named
from attncc.emit.triton_form.sums.tile import SumReader
from attncc.emit.triton_form.sums.tokens import Cut
from attncc.rewrite.algebra import derivative
from attncc.rewrite.backward import gradient_name
from attncc.rewrite.slopes import plus, times
from attncc.spec.expr import Const, Expr, Vector


class PulledSums(SumReader):
    """Prints it. A program meets one factor in blocks of channels; factors and terms come one launch after another."""

    @property
    def gradients(self) -> list[str]:
        """The operands of the fixed axis that get gradients, in order."""
        features = self.sides.features[self.fixed]
        read = {name for each in features for name in _read(*each.expressions)}
        nodes = self.of_axis[self.fixed]
        return [node.name for node in nodes if node.name in read and node.name in self.sides.gradients]

    @property
    def tensors(self) -> list[str]:
        """The tensors of sums that it reads, and those that it adds to."""
        return ["sums", *(["plain"] if self._has_plain else []), *map(gradient_name, self.gradients)]

    @property
    def _has_plain(self) -> bool:
        return any(each is not None for each in self.sides.of_rows.numbers)

    @property
    def cuts(self) -> list[Cut]:
        """What is launched: each term by each factor that gives something a gradient."""
        found = []
        for term in range(self.count):
            whole = self.cut(term)
            for at in range(len(whole.widths)) if whole.widths else (-1,):
                cut = self.cut(term, at)
                if self._gives(cut):
                    found.append(cut)
        return found

    def _gives(self, cut: Cut) -> bool:
        feature = self.feature(self.fixed, cut.term)
        own = list(self._of_factor(feature, cut))
        own += list(self._of_token(feature)) if cut.is_last else []
        payload = self.sides.of_rows
        has_sums = payload.factors[cut.term] is not None or payload.numbers[cut.term] is not None
        return has_sums and any(name in self.gradients for name in own)

    def _of_factor(self, feature: Feature, cut: Cut) -> list[str]:
        if cut.factor < 0:
            return []
        return _read(feature.formulas[cut.factor], *feature.powers[cut.factor].parts)

    def _of_token(self, feature: Feature) -> list[str]:
        return _read(feature.coefficient, *feature.power.parts)

    # --- text -------------------------------------------------------------------------------------------------

    def print_kernel(self) -> None:
        """Write the kernel."""
        writer, fixed = self.writer, self.fixed
        factors = ["FACTOR"] if self.sides.most_factors > 1 else []
        own, others = ("rows", "keys") if self.rows_fixed else ("keys", "rows")
        doc = f"Add what the sums of the tile's {others} give to the gradients of its {own}."
        with self.kernel_of(self.tensors, [*factors, "LAST"], doc):
            self.print_tile(values=False)
            numbers = [name for name in self.gradients if not is_vector(self.sides.nodes[name])]
            for name in numbers:
                writer.line(f"{gradient_name(name)} = tl.zeros([{BLOCK[fixed]}], tl.float32)")
            with self.every_head():
                for cut in self.cuts:
                    with self.term(cut.term), self._factor(cut):
                        self._print_cut(cut)
                if not self.rows_fixed and any(is_vector(self.sides.nodes[name]) for name in self.gradients):
                    writer.line("tl.debug_barrier()  # what is added is written")
            for name in numbers:
                self.used.add("_add_lanes")
                own_name = gradient_name(name)
                step = self.step(fixed) or "1"
                writer.line(f"_add_lanes({own_name}_ptr + first_token, {step}, visible, {own_name}, {BLOCK[fixed]})")

    def _factor(self, cut: Cut) -> AbstractContextManager[None]:
        if sum(each.term == cut.term for each in self.cuts) < 2 and not cut.in_groups:
            return nullcontext()
        return self.writer.block(f"if FACTOR == {cut.factor}:")

    def _print_cut(self, cut: Cut) -> None:
        writer, fixed = self.writer, self.fixed
        block, feature = BLOCK[fixed], self.feature(fixed, cut.term)
        reads_token = cut.is_last and any(name in self.gradients for name in self._of_token(feature))
        if reads_token:
            writer.line(f"d_scale = tl.zeros([{block}], tl.float32)")
        by_group = cut.factor == 0 and cut.in_groups
        name = "own" if by_group else "channel"
        extent = cut.extent(cut.factor) if cut.factor >= 0 else "WIDTH"
        with writer.block(f"for {name} in range(0, {extent}, BLOCK_W):"):
            if by_group:
                writer.line("channel = group + own")
            if self._reads_vectors(cut, reads_token=reads_token):
                self.print_vectors(fixed, cut, START[fixed], "visible")
            if reads_token:
                self.print_formula(fixed, cut)
            writer.line(f"d_part = tl.zeros([{block}, BLOCK_W], tl.float32)")
            with self.every_run():
                self._print_run(cut, name, reads_token=reads_token)
            self._print_given(cut, feature)
        if reads_token:
            self._print_token_gradients(feature)

    def _reads_vectors(self, cut: Cut, *, reads_token: bool) -> bool:
        """Whether something reads the vectors of the factor in blocks: its exponent, or a derivative."""
        if cut.factor < 0:
            return False
        feature = self.feature(self.fixed, cut.term)
        formula, power = feature.formulas[cut.factor], feature.powers[cut.factor]
        own = [self._slope(formula, power, name) for name in self._of_factor(feature, cut) if name in self.gradients]
        return reads_token or bool(power.parts) or any(_read(each) for each in own)

    def _print_run(self, cut: Cut, own: str, *, reads_token: bool) -> None:
        """What one run gives to the gradient of the factor in blocks, and of the numbers beside it."""
        writer, fixed, feature = self.writer, self.fixed, self.feature(self.fixed, cut.term)
        if self.near:
            self.print_near("near_", "near", cut, only="numbers")
            self.print_near("near_", "near", cut, only="block")
        with writer.block("for lead in range(0, choices):") if cut.others else nullcontext():
            self.print_leads(cut)
            if self.near:
                self.print_near("near_", "near", cut, only="leads")
            numbers = [] if feature.power.is_zero else [self.power(fixed, cut.term, None)]
            if self.print_rest(fixed, cut, START[fixed], "visible"):
                numbers.append("rest")
            self._print_feature_gradient(cut, own)
            power = ""
            if cut.factor >= 0 and not feature.powers[cut.factor].is_zero:
                writer.line(f"power = {self.power(fixed, cut.term, cut.factor, tile=True)}")
                power = "power"
            if reads_token:
                product = " * ".join(filter(None, ["part", power, "d_features"]))
                text = " * ".join([*numbers, f"tl.sum({product}, 1)"])
                writer.line(f"d_scale += {text}")
            if feature.coefficient != Const(1):
                numbers.insert(0, self.text(feature.coefficient, fixed, tile=False, context=6))
            parts = ["d_features", *([power] if power else [])]
            if numbers:
                writer.line(f"scaled = tl.zeros([{BLOCK[fixed]}], tl.float32) + {' * '.join(numbers)}")
                parts.append("scaled[:, None]")
            writer.line(f"d_part += {' * '.join(parts)}")

    def _print_feature_gradient(self, cut: Cut, own: str) -> None:
        """`d_features`: of the features the gradient, by what they were multiplied with and by the sums."""
        writer, fixed, block = self.writer, self.fixed, BLOCK[self.fixed]
        payload, of_rows = self.sides.payloads[fixed], self.sides.of_rows
        steps = [f"lead_{at} * {cut.step(at)}" if cut.step(at) != "1" else f"lead_{at}" for at in cut.others]
        step = cut.step(cut.factor) if cut.factor >= 0 else "1"
        steps.append(own if step == "1" else f"{own} * {step}")
        writer.line(f"place = own_sums + {' + '.join(steps)}")
        extent = f"{cut.extent(cut.factor) if cut.factor >= 0 else 'WIDTH'} - {own}"
        writer.line(f"d_features = tl.zeros([{block}, BLOCK_W], tl.float32)")
        if of_rows.factors[cut.term] is not None:
            self.used |= {"_load_sums"}
            factor = payload.factors[cut.term]
            with writer.block("for value in range(0, E, BLOCK_E):"):
                name = payload.vector.name
                self.print_part(name, fixed, START[fixed], "visible", "value", "E", "BLOCK_E")
                if factor is not None and factor != Const(1):
                    writer.line(f"{name} = {name} * {self.text(factor, fixed, tile=True, context=6)}")
                arguments = ["sums_ptr + place * values + value", step, "values", extent, "BLOCK_W", "BLOCK_E"]
                writer.call("sums = _load_sums(", arguments, ")")
                writer.line(f"d_features = _dot({name}, tl.trans(sums), d_features, PRECISION)")
        if of_rows.numbers[cut.term] is not None:
            number = payload.numbers[cut.term]
            writer.line("within = tl.arange(0, BLOCK_W)")
            within = "within" if step == "1" else f"within * {step}"
            writer.line(f"plain = tl.load(plain_ptr + place + {within}, mask=within < {extent}, other=0.0)")
            text = (
                "" if number is None or number == Const(1) else f"{self.text(number, fixed, tile=True, context=6)} * "
            )
            writer.line(f"d_features += {text}plain[None, :]")

    def _print_given(self, cut: Cut, feature: Feature) -> None:
        """What the factor in blocks gives to the operands that it is made of."""
        if cut.factor < 0:
            return
        writer, fixed = self.writer, self.fixed
        formula, power = feature.formulas[cut.factor], feature.powers[cut.factor]
        for name in dict.fromkeys(self._of_factor(feature, cut)):
            if name not in self.gradients:
                continue
            slope = self._slope(formula, power, name)
            given = "d_part" if slope == Const(1) else f"d_part * {self.text(slope, fixed, tile=True, context=6)}"
            own = gradient_name(name)
            if is_vector(self.sides.nodes[name]):
                self.used.add("_add_part")
                step = self.step_in_memory(fixed, "WIDTH")
                place = [f"{own}_ptr + first_token * WIDTH", step, "channel", "visible", given]
                writer.call("_add_part(", [*place, BLOCK[fixed], "WIDTH", "BLOCK_W"], ")")
            else:
                writer.line(f"{own} += tl.sum({given}, 1)")

    def _slope(self, formula: Expr, power: Power, name: str) -> Expr:
        """The derivative of formula * e^power by an operand, over e^power."""
        found = _derivative(formula, name)
        for part in power.parts:
            found = plus(found, times(named(formula), _derivative(part, name)))
        return found

    def _print_token_gradients(self, feature: Feature) -> None:
        """What the number of the token gives to the numbers that it is made of."""
        for name in dict.fromkeys(self._of_token(feature)):
            if name not in self.gradients:
                continue
            slope = _derivative(feature.coefficient, name)
            for part in feature.power.parts:
                slope = plus(slope, times(feature.coefficient, _derivative(part, name)))
            given = (
                "d_scale" if slope == Const(1) else f"d_scale * {self.text(slope, self.fixed, tile=False, context=6)}"
            )
            self.writer.line(f"{gradient_name(name)} += {given}")


def _read(*exprs: Expr) -> list[str]:
    return [each.name for expr in exprs for each in leaves(expr)]


def _derivative(expr: Expr, name: str) -> Expr:
    """The derivative by an operand, of vectors channel by channel."""
    expr = named(expr)
    variables = {each.name: each for each in leaves(expr)}
    found = variables.get(name) or variables.get(named(Vector(name)).name)  # type: ignore[attr-defined]
    return Const(0) if found is None else derivative(expr, found)
