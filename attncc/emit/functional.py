"""The functional form of a module: `attention`, `weights` and what stands between them and the passes."""

from __future__ import annotations

from collections.abc import Sequence

from attncc.emit.decode import Decode, decode_of
from attncc.emit.kept import kept_blocks
from attncc.emit.operands import Operands
from attncc.emit.prologue.arguments import Arguments, declared, named
from attncc.emit.prologue.derive import Prologue
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.texts import PassTexts
from attncc.graph.core import Kind
from attncc.graph.widths import width_text
from attncc.plan.decoder import Decoder, keeps_blocks
from attncc.plan.model import Plan
from attncc.spec.choices import Choice, choices_of
from attncc.spec.data import Data, Make, Size
from attncc.spec.expr import Entry, OverKeys, Reduce, Token, UpTo, Vector, walk
from attncc.spec.model import Align

_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER)


def choice_words(choices: Sequence[Choice]) -> list[str]:
    """What each choice holds, a line each."""
    words = []
    for each in choices:
        axes = "n, " + str(each.entries) if each.entries is not None else "n" if each.of_rows else "m"
        heads = "heads" if each.by_query_head else "kv heads"
        what = "positions of keys" if each.block == 1 else f"numbers of blocks of {each.block} keys"
        missing = f", {what}, -1 for none" if each.entries is not None else ""
        words.append(f"{each.name}: [batch, {heads}, {axes}]{missing}.")
    return words


class FunctionalForm:
    """Texts of the functions that callers see."""

    def __init__(self, plan: Plan, operands: Operands, form: TorchForm, texts: PassTexts, kept_as: str = "") -> None:
        self.plan = plan
        self.spec = plan.spec
        self.operands = operands
        self.form = form
        self.texts = texts
        self.kept_as = kept_as  # the name under which a choice's blocks of keys are kept while decoding
        self.arguments = Arguments(plan.spec)
        self.used: set[str] = set()
        self.stand_ins = self._stand_ins()
        self.decoder: Decoder | None = None
        self.defers = False
        self.hands_on = False  # whether what is derived takes blocks of keys that are kept
        self.decode: Decode | None = None

    def prologue(self, decoder: Decoder | None) -> str:
        """The function that derives operands, if any is derived."""
        self.decoder = decoder
        carries = decoder is not None and decoder.carries
        keeps = decoder is not None and decoder.blocks
        printer = Prologue(self.plan, self.operands, frozenset(self.stand_ins), carries=carries, keeps=keeps)
        self.hands_on = printer.keeps
        text = printer.text()
        self.defers = printer.defers
        if decoder is not None:
            self.decode = decode_of(decoder, self.plan, self.operands, self.form, self.texts, printer)
        self.used |= printer.used
        return text

    def _kept_blocks(self) -> str:
        """The call that goes on from blocks of keys that are kept; nothing where none are."""
        decodes = self.decoder is not None and keeps_blocks(self.plan)
        if not (self.kept_as or decodes):
            return ""
        self.used.add("_kept_blocks")
        return kept_blocks(self.plan, self.operands, self.kept_as or "keys")

    def values(self) -> dict[str, object]:
        """What the template reads, by name."""
        spec, sizes, arguments = self.spec, self.arguments.sizes, self.arguments
        core = self.operands.core
        rows = arguments.rows.name
        data = [each.name for each in spec.data]
        unread = frozenset(each.name for each in self.operands if each.source in self.stand_ins)
        scored = self.form.scored()
        columns = [each.name for each in self.operands if each.kind in _COLUMNS and each.name not in unread]
        makers = {each.maker.make for each in spec.data if each.maker is not None}
        self.used |= {"_random"} if makers else set()
        self.used |= {{Make.RANDOM: "_some_of", Make.NORMAL: "_normal"}[each] for each in makers}
        if arguments.others:
            self.used.add("_expect_data")
        if any(each.ascending for each in arguments.others):
            self.used.add("_expect_ascending")
        cast = arguments.cast()
        choices = choices_of(spec)
        if choices:
            self.used.add("_choices_of")
        start = f"k_start + {sizes[Size.KEYS]} - {sizes[Size.QUERIES]}"
        return {
            "data": ", ".join(data),
            "declared_data": list(map(declared, spec.data)),
            "made": arguments.made(),
            "places": self._places(len(data)),
            "needed_pairs": named(each for each in spec.data if each.maker is None),
            "made_pairs": named(each for each in spec.data if each.maker is not None),
            "first": rows,
            "cast": cast if ", " in cast else f"{cast},",
            "checks": arguments.checks(),
            "width": sizes[Size.WIDTH],
            "batch": sizes[Size.BATCH],
            "default_start": "0" if spec.align is Align.START else start,
            "default_start_words": "0" if spec.align is Align.START else "so that rows and keys end together",
            "data_words": arguments.words(),
            "values_at": self.operands.names.index(core.values),
            "rows_at": self.operands.names.index(core.rows),
            "weights_data": ", ".join(
                each.name if each.maker is None else f"{each.name}=None"
                for each in spec.data
                if each.name not in self.stand_ins
            ),
            "weights_arguments": ", ".join(self.stand_ins.get(name, name) for name in data),
            "weights_names": ", ".join("_" if name in unread else name for name in self.operands.names),
            "weights_columns": columns[0],
            "scored_for_weights": ", ".join(map(self.texts.by_rows, scored)),
            "numbers_call": self.texts.numbers_call(),
            "numbers_call_k": self.texts.numbers_call(unread),
            "decode": self.decode,
            "hands_on": self.hands_on,
            "kept_blocks": self._kept_blocks(),
            "choice_words": choice_words(choices),
            "choices": [f'"{each.name}": {self._choice(each)},' for each in choices],
            "scale_argument": ", scale" if spec.reads_scale else "",
            "attention_class": arguments.module(self.decoder),
        }

    def _places(self, count: int) -> str:
        """The arguments behind the data, as the passes take them."""
        rest = f"*prepared[{count}:]"
        if self.spec.blocks is None:
            return rest
        self.used.add("_on_blocks")
        return f"*_on_blocks({self.spec.blocks.stride}, {rest})"

    def _choice(self, choice: Choice) -> str:
        """The shape of a choice, its least number, and the first number above its range, where that is known."""
        sizes = self.arguments.sizes
        heads = "heads" if choice.by_query_head else sizes.kv_heads
        length = sizes[Size.QUERIES if choice.of_rows else Size.KEYS]
        if choice.entries is not None:
            heads = sizes[Size.HEADS] if heads == "heads" else heads
            end = f"k_start + {sizes[Size.KEYS]}"
            end = end if choice.block == 1 else f"-(-({end}) // {choice.block})"
            return f"(({sizes[Size.BATCH]}, {heads}, {length}, {choice.entries}), -1, {end})"
        match choice.let.value:
            case Reduce(vector=vector):
                end = width_text(vector)
            case OverKeys():
                end = length
            case _:
                end = "None"
        batch = sizes[Size.BATCH]
        heads = sizes[Size.HEADS] if heads == "heads" else heads
        return f"(({batch}, {heads}, {length}), 0, {end})"

    def _stand_ins(self) -> dict[str, str]:
        """Data that weights do not depend on, each with what may stand in its place."""
        core = self.operands.core
        values = core[core.values]
        scored = {each.name for each in self.form.scored()}
        if values.name in scored or not self.operands.is_whole_vector(values) or values.source is None:
            return {}
        derived = [each.value for each in core.derived if each.value is not None]
        fields = (core.score, core.weight, core.normalizer)
        read = {
            each.name
            for expr in (*derived, *fields)
            for each in walk(expr)
            if isinstance(each, Vector | Token | Entry | UpTo)
        }
        others = [each for each in self.spec.data if self._may_stand_in(each, values.source)]
        keys_left = any(each.kind in _COLUMNS and each.source != values.source for each in self.operands)
        if values.source in read or not others or not keys_left:  # something of keys says how many there are
            return {}
        return {values.source: others[0].name}

    def _may_stand_in(self, data: Data, source: str) -> bool:
        given = {each.source for each in self.operands} | {
            node.name
            for each in self.operands.core.derived
            if each.value is not None
            for node in walk(each.value)
            if isinstance(node, Vector)
        }
        return (
            data.name != source
            and data.name in given
            and data.axes[:3] == (Size.BATCH, Size.HEADS, Size.KEYS)
            and data.is_vector
            and not data.whole
        )
