"""The functional form's arguments: how they are checked and described, and the module that holds parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from attncc.emit.dialects import HOST
from attncc.emit.expressions import ExpressionWriter
from attncc.emit.prologue.sizes import Sizes
from attncc.emit.prologue.within import proven
from attncc.emit.writer import Writer
from attncc.plan.decoder import Decoder
from attncc.spec.core_fields import read_fields
from attncc.spec.data import Axis, Blocks, Data, Free, K, Make, Q, Role, Size, V
from attncc.spec.expr import Expr, Name, Symbol, Table, walk
from attncc.spec.model import Spec
from attncc.spec.text import text
from attncc.spec.widths import Demand, Features, demands_of

_WORDS = {
    Size.BATCH: "batch",
    Size.HEADS: "heads",
    Size.QUERIES: "n",
    Size.KEYS: "m",
    Size.WIDTH: "d",
    Size.VALUE_WIDTH: "e",
}


class Arguments:
    """Prints what depends on declared data in the functional form."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.sizes = Sizes(spec)
        self.rows = self.sizes.rows
        self.columns = self.sizes.columns
        self.full = tuple(each for each in spec.data if each.is_full)  # like q, k and v
        self.others = tuple(each for each in spec.data if not each.is_full)

    def cast(self) -> str:
        """The vectors that autocast casts, as assigned to."""
        names = [each.name for each in self.spec.data if each.is_vector and each.role is Role.INPUT and not each.whole]
        return ", ".join(names)

    def made(self) -> list[str]:
        """The lines that make what a caller left out."""
        lines = []
        for each in self.spec.data:
            if each.maker is None:
                continue
            shape = ", ".join(self._made_size(axis, each) for axis in each.axes) + "," * (len(each.axes) == 1)
            device = f"{self.rows.name}.device"
            if each.maker.make is Make.RANDOM:
                call = f"_some_of({each.maker.count}, ({shape}), {each.maker.seed}, {device})"
            else:
                call = f"_normal(({shape}), {each.maker.seed}, {device})"
                call += f".to({self.rows.name}.dtype)" if each.is_vector else ""
            lines += [f"if {each.name} is None:", f"    {each.name} = {call}"]
        return lines

    def _made_size(self, axis: Axis, data: Data) -> str:
        match axis:
            case Size.BATCH:
                return self.sizes[Size.BATCH]
            case Size.HEADS:
                return self.sizes.kv_heads if data.is_column else self.sizes[Size.HEADS]
            case _:
                return self._size(axis, data)

    # --- checks -----------------------------------------------------------------------------------------------

    def checks(self) -> str:
        """The lines that compare shapes, types and devices."""
        writer = Writer()
        with writer.indented():
            self._print_full(writer)
            self._print_shapes(writer)
            if self.others:
                self._print_others(writer, self.others)
            self._print_widths(writer)
            fields = [self.spec.pattern, *read_fields(self.spec)]
            self._print_lists(writer, fields)
        return writer.text().rstrip("\n")

    def _print_full(self, writer: Writer) -> None:
        q = self.rows.name
        pairs = ", ".join(f'("{each.name}", {each.name})' for each in self.full)
        with writer.block(f"for name, x in ({pairs}{',' * (len(self.full) == 1)}):"):
            writer.lines(
                f"""
_expect(not x.is_nested, name, "nested", "a dense tensor")
_expect(x.layout == torch.strided, name, x.layout, "a dense tensor")
_expect(x.dim() == 4, name, list(x.shape), "four axes: [batch, heads, length, width]")
_expect(x.dtype in _DTYPES, name, x.dtype, "float64, float32, bfloat16 or float16")
_expect(x.dtype == {q}.dtype, name, x.dtype, f"the dtype of {q}, {{{q}.dtype}}")
_expect(x.device == {q}.device, name, f"on {{x.device}}", f"the device of {q}, {{{q}.device}}")
"""
            )

    def _print_shapes(self, writer: Writer) -> None:
        q, k = self.rows.name, self.columns.name
        rows = [each for each in self.full if each.is_row and each is not self.rows]
        columns = [each for each in self.full if each.is_column and each is not self.columns]
        names = [each.name for each in self.full]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        shapes = ", ".join(f"{name} {{list({name}.shape)}}" for name in names)
        wide = [each for each in self.full if each.axes[-1] is Size.WIDTH and each is not self.rows]
        writer.line(f"batch, heads, _, width = {q}.shape")
        if len(shapes) <= 80:
            writer.line(f'shapes = f"{shapes}"')
        else:
            writer.line("shapes = (")
            with writer.indented():
                for name in names:
                    writer.line(f'f"{name} {{list({name}.shape)}}{", " * (name != names[-1])}"')
            writer.line(")")
        alike = " and ".join(f"{name}.shape[0] == batch" for name in names if name != q)
        writer.line(f'_expect({alike or True}, "the batch", shapes, "one size in {listed}")')
        heads = self.sizes.kv_heads
        writer.line(f'_expect(heads > 0 and {heads} > 0, "the number of heads", shapes, "one or more")')
        multiple = f"{q}'s to be a multiple of {k}'s"
        writer.line(f'_expect(heads % {heads} == 0, "the number of heads", shapes, "{multiple}")')
        for each, other in (*((x, self.rows) for x in rows), *((x, self.columns) for x in columns)):
            if not other.is_full:
                continue
            expected = f'f"the heads and length of {other.name} {{list({other.name}.shape)}}"'
            alike = f"{each.name}.shape[1:3] == {other.name}.shape[1:3]"
            writer.line(f'_expect({alike}, "{each.name}", list({each.name}.shape), {expected})')
        if self.rows.axes[-1] is Size.WIDTH:
            for each in wide:
                name = each.name
                expected = f'f"the width of {q}, {{width}}"'
                writer.line(f'_expect({name}.shape[3] == width, "{name}", list({name}.shape), {expected})')
        free = [f"{each.name}.shape[3] > 0" for each in self.full if each not in (self.rows, *wide)]
        writer.line('_expect(1 <= width <= 256, "the width", shapes, "1 … 256")')
        if free:
            writer.line(f'_expect({" and ".join(free)}, "the width", shapes, "1 or more")')

    def _print_others(self, writer: Writer, data: Sequence[Data]) -> None:
        """Data with other axes than q, k and v."""
        q = self.rows.name
        for each in data:
            sizes = ", ".join(self._size(axis, each) for axis in each.axes) + "," * (len(each.axes) == 1)
            words = ", ".join(_word(axis) for axis in each.axes)
            kind = "truth values" if each.truth else "whole numbers" if each.whole else "numbers"
            if each.is_vector and each.role is Role.INPUT and each.is_real:
                kind = "vectors"
            writer.line(f'_expect_data("{each.name}", {each.name}, ({sizes}), "[{words}]", "{kind}", {q})')
        for each in data:
            if each.ascending:
                length = ", kv_lengths" if each.is_column else ""
                writer.line(f'_expect_ascending("{each.name}", {each.name}{length})')

    def _print_widths(self, writer: Writer) -> None:
        """What the spec's formulas ask of the widths of vectors that meet."""
        data = {each.name: each for each in self.spec.data}
        fields = [field for core in self.spec.cores for field in read_fields(core)]
        for each in demands_of(fields, data):
            length = _length(data[each.data], each.size)
            match each:
                case Demand(equal=Features(axis=Size() as axis, data=other)):
                    width = _length(data[other], axis)
                    holds, expected = f"{length} == {width}", f'f"a width of {{{width}}}, to fit {other}"'
                case Demand(equal=Features(axis=axis, data=other)):
                    holds, expected = f"{length} == {axis}", f'"a width of {axis}, to fit {other}"'
                case Demand(even=True):
                    holds, expected = f"{length} % 2 == 0", '"an even width, of which the spec turns pairs"'
                case _:
                    holds, expected = f"{length} > {each.above}", f'"feature {each.above}, which the spec reads"'
            writer.line(f'_expect({holds}, "{each.data}", list({each.data}.shape), {expected})')

    def checks_of(self, names: Collection[str]) -> str:
        """The lines that compare some data, and the lists of what combines branches, with the sizes of a call."""
        writer = Writer()
        with writer.indented():
            writer.line(f"batch, heads = {self.rows.name}.shape[:2]")
            self._print_others(writer, [each for each in self.spec.data if each.name in names])
            self._print_lists(writer, [self.spec.combine] if self.spec.combine is not None else [])
        lines = writer.text().rstrip("\n")
        return lines if "\n" in lines else ""  # sizes without anything to compare

    def _print_lists(self, writer: Writer, fields: Sequence[Expr]) -> None:
        """Every head has its entry in the lists of constants."""
        tables = tuple(dict.fromkeys(node for expr in fields for node in walk(expr) if isinstance(node, Table)))
        shortest = min((len(each.values) for each in tables if each.index == Symbol(Name.HEAD)), default=None)
        if shortest is not None:
            expected = f"at most {shortest}, the length of the spec's shortest list"
            writer.line(f'_expect(heads <= {shortest}, "the number of heads", heads, "{expected}")')
        host = ExpressionWriter(HOST, lambda name: {Name.HEAD: "h", Name.HEADS: "heads"}[name], str)
        for each in tables:
            length = len(each.values)
            if each.index == Symbol(Name.HEAD) or proven(each.index, length):
                continue
            holds = f"all(0 <= {host.write(each.index)} < {length} for h in range(heads))"
            expected = f"one with which {text(each.index)} lies within 0 … {length - 1} for each head h"
            writer.line(f'_expect({holds}, "the number of heads", heads, "{expected}")')

    def _size(self, axis: Axis, data: Data) -> str:
        match axis:
            case Size.BATCH:
                return "batch"
            case Size.HEADS:
                return self.sizes.kv_heads if data.is_column else "heads"
            case Size():
                return self.sizes[axis]
            case Blocks(size=size, width=width):
                return f"-(-{self.sizes[size]} // {width})"
            case Free():
                return f"{data.name}.shape[{data.axes.index(axis)}]"
            case _:
                return str(axis)

    # --- descriptions -----------------------------------------------------------------------------------------

    def words(self) -> list[str]:
        """The lines of the docstring."""
        lines = []
        for each in self.spec.data:
            heads = f"query head h reads kv head h // (heads / {'kv ' if each.is_column else ''}heads)"
            match each:
                case _ if each == Q:
                    lines.append(
                        "q: [batch, heads, n, d], float32, bfloat16, float16 or (not in Triton) float64; d up to 256."
                    )
                case _ if each == K:
                    lines.append(f"k: [batch, kv heads, m, d]; {heads}.")
                case _ if each == V and K in self.spec.data:
                    lines.append("v: [batch, kv heads, m, e].")
                case _ if each == V:
                    lines.append(f"v: [batch, kv heads, m, e]; {heads}.")
                case _:
                    axes = ", ".join(
                        "kv heads" if axis is Size.HEADS and each.is_column else _word(axis) for axis in each.axes
                    )
                    kind = "a parameter" if each.role is Role.PARAMETER else "given"
                    numbers = "whole numbers" if each.whole else f"float32 or as {self.rows.name}"
                    numbers = "truth values" if each.truth else numbers
                    numbers += f"; made by {each.maker.make.value}(…) where left out" if each.maker else ""
                    numbers += ", which never fall from one token to the next" if each.ascending else ""
                    lines.append(f"{each.name}: [{axes}], {kind}; {numbers}.")
        return lines

    # --- the module -------------------------------------------------------------------------------------------

    def module(self, decoder: Decoder | None = None) -> str:
        """The class `Attention`; where it decodes, with `prefill` and `step`."""
        writer = Writer()
        learned = [each for each in self.spec.data if each.role is Role.PARAMETER]
        given = [each for each in self.spec.data if each.role is not Role.PARAMETER]
        read = {axis for each in learned for axis in each.axes}
        sizes = [_WORDS[size] for size in Size if size in read]
        scale = self.spec.reads_scale
        arguments = ["self", *(["*"] if sizes else []), *(f"{size}: int" for size in sizes)]
        arguments += ["scale: float | None = None"] if scale else []
        arguments += ["form: str | None = None"]
        with writer.block("class Attention(nn.Module):"):
            what = "that holds the spec's parameters" if learned else "without parameters"
            writer.line(f'"""`attention` as a module {what}."""')
            writer.line()
            with writer.block(f"def __init__({', '.join(arguments)}):"):
                writer.line("super().__init__()")
                if scale:
                    writer.line("self.scale = scale")
                writer.line("self.form = form")
                for size in sizes:
                    writer.line(f'_expect_number("{size}", {size}, 1)')
                    writer.line(f"self.{size} = {size}")
                for each in learned:
                    shape = ", ".join(_word(axis) for axis in each.axes)
                    shape = shape or "()"
                    writer.line(f"self.{each.name} = nn.Parameter(torch.empty({shape}))")
                if learned:
                    writer.line("self.reset_parameters()")
            if learned:
                writer.line()
                with writer.block("def reset_parameters(self) -> None:"):
                    writer.line('"""Every parameter as it is before training."""')
                    for each in learned:
                        if each.initial is None:
                            writer.line(f"nn.init.normal_(self.{each.name}, std=0.02)")
                        else:
                            writer.line(f"nn.init.constant_(self.{each.name}, {each.initial!r})")
            writer.line()
            names = ", ".join(declared(each) for each in given)
            with writer.block(f"def forward(self, {names}, **options):"):
                writer.line('"""See `attention`; `options` are its other arguments."""')
                passed = [f"self.{each.name}" if each in learned else each.name for each in self.spec.data]
                passed += ["scale=self.scale"] if scale else []
                writer.line(f"return attention({', '.join(passed)}, form=self.form, **options)")
            if decoder is not None:
                self._print_decoding(writer, given, passed, form=not decoder.reads_length)
            writer.line()
            with writer.block("def extra_repr(self) -> str:"):
                about = ", ".join(f"{name}={{self.{name}}}" for name in [*sizes, *(["scale"] if scale else []), "form"])
                writer.line(f'return f"{about}"')
        return writer.text()

    def _print_decoding(self, writer: Writer, given: Sequence[Data], passed: list[str], *, form: bool) -> None:
        names = ", ".join(map(declared, given))
        writer.line()
        with writer.block(f"def prefill(self, {names}, **options):"):
            writer.line('"""See `prefill`: the first tokens of a sequence."""')
            own = [*passed, *["form=self.form"] * form]
            writer.line(f"return prefill({', '.join(own)}, **options)")
        writer.line()
        with writer.block(f"def step(self, {', '.join(before_and_behind(given, 'cache: Cache', declared))}):"):
            writer.line('"""See `step`: the next tokens of a sequence."""')
            at = len(self.spec.data) - sum(each.maker is not None for each in self.spec.data)
            writer.line(f"return step({', '.join([*passed[:at], 'cache', *passed[at:]])})")


def declared(data: Data) -> str:
    """An argument as a function declares it."""
    return f"{data.name}: Tensor" if data.maker is None else f"{data.name}: Tensor | None = None"


def named(data: Iterable[Data]) -> str:
    """Data as arguments of the same names."""
    return ", ".join(f"{each.name}={each.name}" for each in data)


def before_and_behind(data: Sequence[Data], cache: str, word: Callable[[Data], str]) -> list[str]:
    """The words of data with that of a cache among them: what may be left out stands behind it."""
    made = [word(each) for each in data if each.maker is not None]
    return [*(word(each) for each in data if each.maker is None), cache, *made]


def _word(axis: Axis) -> str:
    """An axis as the docstring names it."""
    match axis:
        case Size():
            return _WORDS[axis]
        case Blocks(size=size, width=width):
            return f"ceil({_WORDS[size]} / {width})"
        case Free():
            return "any"
        case _:
            return str(axis)


def _length(data: Data, size: Size) -> str:
    return f"{data.name}.shape[{data.axes.index(size)}]"
