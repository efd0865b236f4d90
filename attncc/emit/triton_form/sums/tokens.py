"""Features of the tokens of a tile, channel block by channel block, relative to a token near by where they decay."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.features import Feature, Power
from attncc.emit.triton_form.scope import BLOCK, LANES, POSITION, constexpr_of, is_vector
from attncc.emit.triton_form.sums.scope import OTHER, SumsScope, leaves
from attncc.graph.ops import Axis
from attncc.spec.expr import Const, Expr, Name, Vector, names_in

_PRODUCT = 6  # the context of a factor


@dataclass(frozen=True, slots=True)
class Cut:
    """A term of which one factor is met in blocks of channels, and the others channel by channel."""

    term: int
    factor: int  # the one that is met in blocks; -1 where the term has none
    widths: tuple[str, ...]  # constexprs of the factors' widths

    @property
    def others(self) -> tuple[int, ...]:
        """The factors that are met channel by channel."""
        return tuple(at for at in range(len(self.widths)) if at != self.factor)

    @property
    def is_last(self) -> bool:
        """Whether sums of this cut lie as they are made: the last factor's channels side by side."""
        return self.factor == len(self.widths) - 1

    @property
    def in_groups(self) -> bool:
        """Whether sums are made for some channels of the first factor at a time."""
        return len(self.widths) > 1

    def extent(self, at: int) -> str:
        """How many channels of a factor sums are made for at a time."""
        return "span" if at == 0 and self.in_groups else self.widths[at]

    def lead_count(self) -> str:
        """How many choices of the other factors' channels there are."""
        return " * ".join(self.extent(at) for at in self.others) or "1"

    def step(self, at: int) -> str:
        """From the sums of one channel of a factor to those of the next."""
        after = [self.widths[other] for other in range(at + 1, len(self.widths) - 1)]
        if at < len(self.widths) - 1:
            after.append("padded")
        return " * ".join(after) or "1"


class TokenTexts(SumsScope):
    """Features of tokens."""

    def feature(self, axis: Axis, term: int) -> Feature:
        return self.sides.features[axis][term]

    def cut(self, term: int, factor: int | None = None) -> Cut:
        """A term, cut by one of its factors: the last one if none is given."""
        widths = tuple(map(constexpr_of, self.feature(Axis.ROW, term).widths))
        return Cut(term, len(widths) - 1 if factor is None else factor, widths)

    # --- loads ------------------------------------------------------------------------------------------------

    def print_lanes_of(self, axis: Axis, start: str) -> None:
        """The places and positions of a tile's tokens."""
        self.writer.line(f"{LANES[axis]} = {start} + tl.arange(0, {BLOCK[axis]})")
        self.writer.line(f"{POSITION[axis]} = {self.position(axis)}")

    def print_numbers_of(self, axis: Axis, start: str, visible: str) -> None:
        """The numbers of a tile's tokens."""
        for node in self.of_axis[axis]:
            if not is_vector(node):
                self._print_lanes_of(node.name, f"{node.name}_at", axis, start, "1", visible)

    def _print_lanes_of(self, name: str, base: str, axis: Axis, start: str, stride: str, visible: str) -> None:
        self.used.add("_load_lanes")
        step = self.step(axis)
        stride = stride if stride != "1" else step or "1"
        masked = "True" if visible else "False"
        first = f"tl.cast({start}, tl.int64)" if stride == "1" else f"tl.cast({start}, tl.int64) * {stride}"
        arguments = [f"{base} + {first}", stride, visible or "0", BLOCK[axis], masked]
        self.writer.call(f"{name} = _load_lanes(", arguments, ")")

    def print_part(self, name: str, axis: Axis, start: str, visible: str, channel: str, width: str, block: str) -> None:
        """Some channels of the vectors of a tile's tokens."""
        self.used.add("_load_part")
        first = f"{name}_at + tl.cast({start}, tl.int64) * {name}_stride"
        arguments = [channel, visible or "0", BLOCK[axis], width, block, str(bool(visible))]
        self.writer.call(f"{name} = _load_part(", [first, f"{name}_stride", *arguments], ")")

    def _vectors_in(self, exprs: list[Expr]) -> list[str]:
        return list(dict.fromkeys(each.name for expr in exprs for each in leaves(expr) if isinstance(each, Vector)))

    def read_in_factor(self, axis: Axis, cut: Cut, at: int) -> list[str]:
        """The vectors that one factor of a side reads, in its formula and its exponent."""
        if at < 0:
            return []
        feature = self.feature(axis, cut.term)
        return self._vectors_in([feature.formulas[at], *feature.powers[at].parts])

    def print_leads(self, cut: Cut) -> None:
        """The channels of the factors that are met channel by channel, of the choice `lead`."""
        others = cut.others
        for place in range(len(others) - 1, -1, -1):
            at = others[place]
            rest = "lead" if place == len(others) - 1 else "rest"
            if place == 0:
                self.writer.line(f"lead_{at} = {rest}")
            else:
                self.writer.line(f"lead_{at} = {rest} % {cut.extent(at)}")
                self.writer.line(f"rest = {rest} // {cut.extent(at)}")

    def lead(self, cut: Cut, at: int) -> str:
        """The channel of a factor; sums for some channels of the first one count from the first of these."""
        return f"lead_{at} + group" if at == 0 and cut.in_groups else f"lead_{at}"

    # --- features ---------------------------------------------------------------------------------------------

    def print_factor(self, axis: Axis, cut: Cut, start: str, visible: str) -> None:
        """The vectors that the factor in blocks reads, and `part`, its formula for each lane and channel."""
        self.print_vectors(axis, cut, start, visible)
        self.print_formula(axis, cut)

    def print_vectors(self, axis: Axis, cut: Cut, start: str, visible: str) -> None:
        """The vectors that the factor in blocks reads."""
        for name in self.read_in_factor(axis, cut, cut.factor):
            self.print_part(name, axis, start, visible, "channel", "WIDTH", "BLOCK_W")

    def print_formula(self, axis: Axis, cut: Cut) -> None:
        """`part`, the formula of the factor in blocks for each lane and channel."""
        zeros = f"tl.zeros([{BLOCK[axis]}, BLOCK_W], tl.float32)"
        formula = self.feature(axis, cut.term).formulas[cut.factor] if cut.factor >= 0 else Const(1)
        if isinstance(formula, Vector):
            self.writer.line(f"part = {formula.name}")
            return
        self.writer.line("channels = channel + tl.arange(0, BLOCK_W)")
        if cut.factor < 0:
            self.writer.line(f"part = {zeros} + (channels == 0)[None, :]")
        elif isinstance(formula, Const):
            self.writer.line(f"part = {zeros} + (channels < WIDTH)[None, :]")
        else:
            text = self.text(formula, axis, tile=True)
            self.writer.line(f"part = tl.where((channels < WIDTH)[None, :], {text}, 0.0)")

    def print_rest(self, axis: Axis, cut: Cut, start: str, visible: str) -> bool:
        """`rest`, the product of the channels of the other factors; whether there are any."""
        parts = []
        feature = self.feature(axis, cut.term)
        for at in cut.others:
            for name in self.read_in_factor(axis, cut, at):
                self.writer.line(f"channel_at = {name}_at + {self.lead(cut, at)}")
                self._print_lanes_of(f"{name}_{at}", "channel_at", axis, start, f"{name}_stride", visible)
            formula = feature.formulas[at]
            if formula != Const(1):
                parts.append(self.text(formula, axis, tile=False, channel=f"_{at}", context=_PRODUCT))
            if not feature.powers[at].is_zero:
                parts.append(self.power(axis, cut.term, at, channel=f"_{at}"))
        if parts:
            self.writer.line(f"rest = {' * '.join(parts)}")
        return bool(parts)

    def scale(self, axis: Axis, cut: Cut) -> list[str]:
        """The numbers of each lane that features are multiplied with."""
        feature = self.feature(axis, cut.term)
        parts = [] if feature.coefficient == Const(1) else [self.text(feature.coefficient, axis, tile=False, context=6)]
        if not feature.power.is_zero:
            parts.append(self.power(axis, cut.term, None))
        return parts

    def print_features(self, axis: Axis, cut: Cut, start: str, visible: str) -> None:
        """`features` of each lane and channel of the block, for the choice `lead` of the other channels."""
        self.print_factor(axis, cut, start, visible)
        self.print_scaled(axis, cut, start, visible)

    def print_scaled(self, axis: Axis, cut: Cut, start: str, visible: str) -> None:
        """`features`, of `part`."""
        numbers = self.scale(axis, cut)
        if self.print_rest(axis, cut, start, visible):
            numbers.append("rest")
        parts = ["part"]
        if cut.factor >= 0 and not self.feature(axis, cut.term).powers[cut.factor].is_zero:
            parts.append(self.power(axis, cut.term, cut.factor, tile=True))
        if numbers:
            if any(not self._is_of_call(each) for each in numbers):
                self.writer.line(f"scaled = {' * '.join(numbers)}")
                parts.append("scaled[:, None]")
            else:
                parts += numbers
        self.writer.line(f"features = {' * '.join(parts)}")

    def _is_of_call(self, text: str) -> bool:
        """Whether a text is a number that is the same for all tokens."""
        node = self.node(text)
        return (node is not None and not node.axes) or text.replace(".", "").replace("-", "").isdigit()

    # --- exponents --------------------------------------------------------------------------------------------

    def power(self, axis: Axis, term: int, at: int | None, *, tile: bool = False, channel: str = "") -> str:
        """e to one side's part of the exponent of a term or of one of its factors, relative to the token near by."""
        other = OTHER[axis]
        own, far = (self._power_of(self.feature(each, term), at) for each in (axis, other))
        parts = []
        if own.slope is not None:
            here = self.text_of_position(axis, tile=tile)
            distance = f"{here} - near_at" if axis is Axis.ROW else f"near_at - {here}"
            slope = self.text(own.slope, axis, tile=tile, context=_PRODUCT)
            parts.append(f"{slope} * tl.cast({distance}, tl.float32)")
        for mine, others in zip(own.parts, far.parts, strict=True):
            here = self.text(mine, axis, tile=tile, channel=channel, context=5)
            if axis is self.swept:
                near = self.text(mine, axis, tile=tile, prefix="near_", channel=channel, context=_PRODUCT)
                parts.append(f"({here} - {near})")
            else:
                near = self.text(others, other, tile=tile, prefix="near_", channel=channel, context=5)
                parts.append(f"({here} + {near})")
        return f"tl.exp({' + '.join(parts)})"

    def text_of_position(self, axis: Axis, *, tile: bool) -> str:
        return f"{POSITION[axis]}[:, None]" if tile else POSITION[axis]

    def _power_of(self, feature: Feature, at: int | None) -> Power:
        return feature.power if at is None else feature.powers[at]

    def print_near(self, prefix: str, token: str, cut: Cut, *, only: str = "") -> None:
        """What is read of the token near by, of the swept axis: its position, numbers and channels.

        Args:
            token: the text of its place in its class.
            only: `numbers` or `block` or `leads`, to read a part of that.
        """
        axis, writer = self.swept, self.writer
        feature = self.feature(axis, cut.term)
        place = f"{token} * {self.step(axis)}" if self.laid_out else token
        if only in ("", "numbers"):
            names = {each.name for power in feature.every_power for part in power.parts for each in leaves(part)}
            if self.powers_read_position(axis):
                writer.line(f"{prefix}at = {self.position(axis, token)}")
            for node in self.of_axis[axis]:
                if not is_vector(node) and node.name in names:
                    writer.line(f"{prefix}{node.name} = tl.load({node.name}_at + {place})")
        if only in ("", "block") and cut.factor >= 0:
            for name in self._vectors_in(list(feature.powers[cut.factor].parts)):
                self.used.add("_load_vector")
                first = f"{name}_at + tl.cast({token}, tl.int64) * {name}_stride"
                writer.call(f"{prefix}{name} = _load_vector(", [first, "channel", "WIDTH", "BLOCK_W"], ")")
        if only in ("", "leads"):
            for at in cut.others:
                for name in self._vectors_in(list(feature.powers[at].parts)):
                    first = f"{name}_at + tl.cast({token}, tl.int64) * {name}_stride + {self.lead(cut, at)}"
                    writer.line(f"{prefix}{name}_{at} = tl.load({first}).to(tl.float32)")

    def powers_read_position(self, axis: Axis) -> bool:
        """Whether exponents read positions of an axis."""
        name = Name.I if axis is Axis.ROW else Name.J
        powers = [power for each in self.sides.features[axis] for power in each.every_power]
        return any(each.slope is not None for each in powers) or any(
            name in names_in(part) for each in powers for part in each.parts
        )

    def moved(self, cut: Cut, start: str, end: str) -> tuple[str, str]:
        """What sums relative to one token are multiplied with to be relative to another: of a term, and by channel."""
        axis = self.swept
        feature = self.feature(axis, cut.term)
        numbers = [self._move(axis, feature.power, start, end)]
        numbers += [self._move(axis, feature.powers[at], start, end, f"_{at}") for at in cut.others]
        block = self._move(axis, feature.powers[cut.factor], start, end) if cut.factor >= 0 else ""
        return " + ".join(filter(None, numbers)), block

    def _move(self, axis: Axis, power: Power, start: str, end: str, channel: str = "") -> str:
        parts = []
        if power.slope is not None:
            slope = self.text(power.slope, axis, tile=False, context=_PRODUCT)
            distance = f"{end}at - {start}at" if axis is Axis.COLUMN else f"{start}at - {end}at"
            parts.append(f"{slope} * tl.cast({distance}, tl.float32)")
        for part in power.parts:
            old, new = (
                self.text(part, axis, tile=False, prefix=each, channel=channel, context=_PRODUCT)
                for each in (start, end)
            )
            parts.append(f"({old} - {new})")
        return " + ".join(parts)
