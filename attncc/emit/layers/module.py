"""Plan of a layer → the text of its module, formatted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from attncc.emit.combined import emit_cores, heading
from attncc.emit.finish import Finishing
from attncc.emit.header import derivation
from attncc.emit.imports import with_imports
from attncc.emit.layers.entrance import Entrance, size_of
from attncc.emit.layers.expressions import Printer
from attncc.emit.layers.library import NAMES, library
from attncc.emit.layers.made import Constructor
from attncc.emit.layers.sections import Section, sections, weights_name
from attncc.emit.render import render
from attncc.emit.units import laid_out
from attncc.emit.writer import fill
from attncc.plan.decoder import decoder_of, decoders_of
from attncc.plan.describe import cost_sentence, decoder_sentence, plan_sentence
from attncc.plan.layers import LayerPlan
from attncc.plan.model import Mixture, Plan
from attncc.plan.token_by_token import OF_BLOCKS, calls_blocks
from attncc.spec.layers.dims import Dim
from attncc.spec.layers.model import Input, Kind, Node, Op, sides_of
from attncc.version import VERSION


@dataclass(frozen=True, slots=True)
class CallSite:
    """One place where a core is called: what it is called there, and the function that is called."""

    name: str
    function: str
    cache: str
    options: str  # besides the values: `kv_lengths=lengths, form=self.form`
    split: int | None = None  # the values from this one on stand behind the cache in a step
    blocks: str = ""  # where keys are blocks of tokens: which values belong to them, and their axis of tokens


@dataclass(frozen=True, slots=True)
class Keeper:
    """One place where an operator reads earlier tokens: what it is called there, and its function."""

    name: str
    function: str
    batched: bool  # whether what it keeps belongs to batch entries


def emit_module(plan: LayerPlan) -> Finishing:
    """The module's text but for its kernels in C, which is being formatted; the same for the same plan."""
    layer = plan.layer
    weighed = {each.name for each in sides_of(layer) if each.op is not Op.LOG_SUMS}
    begun = [(name, emit_cores(planned)) for name, planned in plan.cores]
    made = sections([(name, each.text()) for name, each in begun], NAMES, weighed)
    class_name = camel_case(layer.name)
    body = _Body(plan, {each.name: each for each in made})
    own = Constructor(layer, plan)
    resets = own.resets()
    entrance = Entrance(layer, body.spell)
    helpers = library(
        body.printer.helpers
        | entrance.helpers
        | own.helpers
        | ({"_uniform"} if "_uniform(" in "".join(resets) else set())
        | ({"_demand_kept"} if body.kept() else set())
    )
    values: dict[str, object] = {
        "derivation": derivation(plan.steps) if plan.steps else "",
        "sections": "\n\n\n".join(_section_text(each, plan) for each in made),
        "helpers": helpers,
        "layer": layer,
        "class_name": class_name,
        "summary": "\n    ".join(fill(layer.summary or f"The layer `{layer.name}`.", 92)),
        "arguments": own.arguments(),
        "argument_words": own.words(),
        "checks": own.checks(),
        "settings": own.settings(),
        "parameters": own.parameters(),
        "resets": resets,
        "repr": own.repr_text(),
        "signature": ", ".join(f"{each.name}: Tensor" for each in layer.inputs),
        "inputs": [each.name for each in layer.inputs],
        "input_words": [_input_words(each) for each in layer.inputs],
        "input_checks": entrance.lines(),
        "out_words": _shape_words(layer.out.type.axes),
        "lengths": [("lengths" if name == "n" else "m_lengths", name) for name in layer.sequences],
        "lines": body.lines,
        "sites": body.sites,
        "keepers": body.keepers,
        "kept": body.kept(),
        "called": [*(each.name for each in body.sites), *(each.name for each in body.keepers)],
        "decodes": not plan.decoding,
        "token_count": "" if plan.decoding else size_of(layer, "n"),
        "reads_start": "start" in "".join(body.lines),
    }
    return Finishing(with_imports(layer_header(plan), render("layer.py.jinja", values)))


def camel_case(name: str) -> str:
    """`gated_attention_unit` → `GatedAttentionUnit`"""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _section_text(section: Section, plan: LayerPlan) -> str:
    planned = dict(plan.cores)[section.name] if section.name else None
    if planned is None:
        return f"{heading('what the cores share')}\n\n{laid_out(section.units)}"
    plans = planned.branches if isinstance(planned, Mixture) else (("", planned),)
    steps = tuple(dict.fromkeys(step for _, each in plans for step in each.steps))
    return f"{heading(f'the core `{section.name}`')}\n{derivation(steps)}\n\n{laid_out(section.units)}"


def layer_header(plan: LayerPlan) -> str:
    """The comment at the top: the spec's text, the attentions that it takes from other files, and their plans."""
    layer = plan.layer
    given = "".join(f" -D {each.name}={each.value}" for each in layer.parameters if each.name in layer.given)
    digested = hashlib.sha256(layer.source.text.encode()).hexdigest()
    file = _file_name(layer.source.name)
    lines = [
        f"{layer.name}: made by attncc {VERSION} from {file} (sha256 {digested[:16]}). Do not edit.",
        f"Rebuild: attncc build {file}{given}",
        "",
        *(f"    {line}".rstrip() for line in layer.source.text.rstrip().splitlines()),
        "",
    ]
    for source in layer.sources:
        lines += [f"From {_file_name(source.name)}:", ""]
        lines += [*(f"    {line}".rstrip() for line in source.text.rstrip().splitlines()), ""]
    for name, planned in plan.cores:
        plans: Sequence[tuple[str, Plan]] = planned.branches if isinstance(planned, Mixture) else (("", planned),)
        for branch, each in plans:
            of = f" of `{name}`" + (f", `{branch}`" if branch else "")
            lines += fill(f"Plan{of}: {plan_sentence(each.domain, each.pieces, each.lists)}", 96)
            lines += fill(f"Cost{of}: {cost_sentence(each)}", 96)
        if name in plan.of_blocks:
            lines.append(f"Decoder of `{name}`: {OF_BLOCKS}")
            continue
        found = decoders_of(planned) if isinstance(planned, Mixture) else decoder_of(planned)
        if isinstance(found, str) or not isinstance(found, dict):
            lines += fill(f"Decoder of `{name}`: {decoder_sentence(found)}", 96)
    if plan.decoding:
        lines += fill(f"No step: {plan.decoding}.", 96)
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _file_name(name: str) -> str:
    own = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(one if one.isprintable() else "?" for one in own)


def _shape_words(axes: tuple[Dim, ...]) -> str:
    return f"[{', '.join(['batch', *map(str, axes)])}]"


def _input_words(each: Input) -> str:
    kinds = {Kind.REAL: "", Kind.INT: ", whole numbers", Kind.BOOL: ", truth values"}
    return f"{each.name}: {_shape_words(each.type.axes)}{kinds[each.type.kind]}."


class _Body:
    """What `forward` computes, line by line."""

    def __init__(self, plan: LayerPlan, made: dict[str, Section]) -> None:
        self.plan = plan
        self.layer = plan.layer
        self.made = made
        self.sites: list[CallSite] = []
        self.keepers: list[Keeper] = []
        self._constants = {each.name: str(each.value) for each in self.layer.parameters if each.fixed}
        learned = {each.name: each.type for each in self.layer.learned}
        batch = f"{self.layer.inputs[0].name}.shape[0]"
        self.printer = Printer(self.spell, learned, self._call, self._side, batch)
        self.read_beside = {(node.args[0].name, node.op) for node in sides_of(self.layer)}
        # Of what sides are read: the call, its arguments and options, and where its logarithms are.
        self.calls: dict[str, tuple[Node, list[str], str, str]] = {}
        self._prepare()
        values = [(name, node) for name, node in self.layer.values if not _is_size(node)]
        self.lines = [line for name, node in values[:-1] for line in self._statements(name, node)]
        *before, last = self.printer.statement("", values[-1][1])
        self.lines += [*before, f"return {last.removeprefix(' = ')}"]
        self.lines[:0] = self._before()

    def _prepare(self) -> None:
        """What the printer has to know beside the names of values."""
        printer, layer = self.printer, self.layer
        real = [each.name for each in layer.inputs if each.type.kind is Kind.REAL]
        printer.like = [*real, *(f"self.{each.name}" for each in layer.learned), layer.inputs[0].name][0]
        printer.taken = {name for name, _ in layer.values} | {each.name for each in layer.inputs}
        printer.taken |= {each.name for each in layer.learned} | {each.name for each in layer.parameters}
        printer.taken |= set(self.made) | {"lengths", "m_lengths", "start", "self"}
        if not self.plan.decoding:
            printer.keep = self._keep

    def _statements(self, name: str, node: Node) -> list[str]:
        """The lines that compute a value."""
        if not any(name == each for each, _ in self.read_beside):
            return self.printer.statement(name, node)
        self.printer.lines = found = []
        call = node.args[0] if node.op is Op.DROP else node
        arguments = []
        for data, each in zip(self.layer.core(call.name).spec.data, call.args, strict=True):
            text = self.printer.text(each)
            if not text.replace(".", "").isidentifier():  # it is read more than once
                own = self.printer.free_name(f"{name}_{data.name}")
                found.append(f"{own} = {text}")
                text = own
            arguments.append(text)
        options = [f"{option}={self.printer.text(each)}" for option, each in call.options]
        has_logs = (name, Op.LOG_SUMS) in self.read_beside
        logs = self.printer.free_name(f"{name}_log_sums") if has_logs else ""
        targets = [name, *[logs] * has_logs]
        given = ", ".join([*arguments, *options, *["return_lse=True"] * has_logs])
        found.append(f"{', '.join(targets)} = {self._call(call)}({given})")
        if node.op is Op.DROP:
            found += [f"{each} = {each}.squeeze({axis})" for each, axis in zip(targets, (-3, -2), strict=False)]
        self.calls[name] = call, arguments, ", ".join(options), logs
        return found

    def _side(self, node: Node) -> str:
        """What a call gives beside its output."""
        name = node.args[0].name
        call, arguments, options, logs = self.calls[name]
        if node.op is Op.LOG_SUMS:
            return f"{logs}.to({name}.dtype)"
        section = self.made[call.name]
        lengths = self.printer.lengths_of(call.dims[0])
        given = ", ".join([*[f"kv_lengths={lengths}"] * (lengths != "None"), *[options] * bool(options)])
        weights = weights_name(section.function)
        weights = f"functools.partial({weights}, {given})" if given else weights
        data = self.layer.core(call.name).spec.data
        values = [text for each, text in zip(data, arguments, strict=True) if each.name in section.weights]
        rows = call.type.axes[-2]
        helper = "_column_sums" if node.op is Op.COLUMN_SUMS else "_block_sums"
        self.printer.helpers.add(helper)
        parts = [weights, f"({', '.join(values)},)", self.printer.dim(rows), self.printer.lengths_of(rows)]
        parts += [self.printer.dim(each) for each in node.dims]
        parts += ["own=False"] * (node.op is Op.COLUMN_SUMS and not node.numbers[0])
        found = f"{helper}({', '.join(parts)})"
        has_heads = len(node.args[0].type.axes) == len(call.type.axes)
        return found if has_heads else f"{found}.squeeze(1)"

    def spell(self, name: str) -> str:
        """A parameter is held by the module, unless it is fixed; other names are local."""
        if name in self._constants:
            return self._constants[name]
        return f"self.{name}" if any(each.name == name for each in self.layer.parameters) else name

    def _before(self) -> list[str]:
        """Lengths that are read, and what they may be."""
        found = []
        for name in sorted(self.printer.lengths):
            found.append(f"{name} = {size_of(self.layer, name)}")
        for text, (_, whole) in self.printer.longest.items():
            most = self.printer.dim(whole)
            found.append(f'_demand({text} <= {most}, "the length", {text}, f"at most {{{most}}}")')
        return found

    def kept(self) -> list[str]:
        """What the cache holds of the batch entries beside what cores keep, which they compare themselves."""
        found = [f"cache.{each.name}" for each in self.keepers if each.batched]
        return found + [f"*cache.{each.name}" for each in self.sites if each.blocks]

    def _keep(self, function: str, batched: bool) -> str:
        """The name under which an operator that keeps something of earlier tokens is called at this place."""
        name = self.printer.free_name(function.removeprefix("_"))
        self.keepers.append(Keeper(name, function, batched))
        self.printer.helpers.add(f"{function}_step")
        return name

    def _call(self, node: Node) -> str:
        """The name under which the core is called at this place."""
        section = self.made[node.name]
        count = sum(each.function == section.function for each in self.sites)
        name = node.name if not count else f"{node.name}_{count + 1}"
        taken = {one for one, _ in self.layer.values} | {each.name for each in self.layer.inputs}
        if name in taken:
            name = f"{name}_core"
        options = []
        lengths = self.printer.lengths_of(node.dims[0])
        if lengths != "None":
            options.append(f"kv_lengths={lengths}")
        options.append("form=self.form")
        data = self.layer.core(node.name).spec.data
        needed = sum(each.maker is None for each in data)
        split, blocks = needed if needed < len(data) else None, ""
        if not self.plan.decoding and calls_blocks(node):
            self.printer.helpers.add("_with_blocks")
            places = [f"({at}, {-2 if each.is_vector else -1})" for at, each in enumerate(data) if each.is_column]
            blocks = f"({', '.join(places)}{',' * (len(places) == 1)})"
        self.sites.append(CallSite(name, section.function, section.cache, ", ".join(options), split, blocks))
        return name


def _is_size(node: Node) -> bool:
    return node.type.is_number and node.op is Op.SIZE
