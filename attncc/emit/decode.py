"""Plan → texts of the functions that decode: the cache, `step` and `prefill`."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.operands import Operands
from attncc.emit.prologue.arguments import Arguments, before_and_behind, declared
from attncc.emit.prologue.derive import Prologue
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.torch_form.texts import PassTexts
from attncc.emit.writer import listed
from attncc.graph.core import Kind
from attncc.plan.decoder import Decoder
from attncc.plan.describe import decoder_text
from attncc.plan.model import Plan
from attncc.spec.data import Size
from attncc.spec.model import Spec

_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER, Kind.COLUMN_FACT)


@dataclass(frozen=True, slots=True)
class Decode:
    """What the template reads."""

    keeps: str
    leading: int
    back: int | None
    sums: bool
    begins: bool
    adds: bool  # whether parts of the pattern say if gradients are there already
    reads_length: bool
    carries: int  # how many running sums go on
    bounded: bool  # whether some keys are not kept
    low: str  # how many of the tokens that the cache holds no later row asks for
    columns: str
    column_names: list[str]
    listed: str
    quoted: str
    state_heads: bool
    distances: str
    distance_names: str
    given: str
    numbers_call: str
    n: str
    m: str
    sized_rows: str
    sized_values: str
    rows: str
    keys: str
    signature: str
    step_signature: str
    step_options: str
    prefill_options: str
    anew: bool
    blocks: bool  # whether blocks of keys that are full are kept
    token_axes: str


def decode_of(
    decoder: Decoder, plan: Plan, operands: Operands, form: TorchForm, texts: PassTexts, prologue: Prologue
) -> Decode:
    """The texts of a plan with a decoder."""
    spec, core = plan.spec, operands.core
    columns = [each.name for each in core.of_kind(*_COLUMNS)]
    if decoder.anew:
        columns = [each.name for each in spec.data if each.is_column]
    offsets = [each.name for each in core.of_kind(Kind.OFFSET_NUMBER)]
    data = [each.name for each in spec.data]
    scale = ["scale"] if spec.reads_scale else []
    given = list(dict.fromkeys([*(each for each in operands.names if each not in (*columns, *offsets)), *scale]))
    more = [name for name in data if name not in (*given, *columns)] if offsets else []
    length = "cache.length" if decoder.reads_length else ""
    sizes = Arguments(spec).sizes
    rows = f"_as_long({core.rows}, {length})" if length else core.rows
    values = f"_as_long({core.values}, {length})" if length else core.values
    optional = ["scale: float | None = None"] * spec.reads_scale + ["return_lse: bool = False"] * plan.has_lse
    options = ["*"]
    options += ["length: int"] * decoder.reads_length
    options += optional
    options += ["form: str | None = None"] * (not decoder.reads_length)
    low = "0"
    if decoder.sums:
        low = "cache.summed - cache.dropped"
    elif decoder.back is not None:
        low = f"min(max(cache.position - {decoder.back} - cache.dropped, 0), held)"
    return Decode(
        keeps=decoder_text(decoder),
        leading=decoder.leading,
        back=decoder.back,
        sums=decoder.sums,
        begins=form.begun or form.chained,
        adds=plan.pieces is not None and plan.pieces.have_own_rows,
        reads_length=decoder.reads_length,
        carries=prologue.carried,
        bounded=decoder.sums or decoder.back is not None,
        low=low,
        columns=", ".join(columns) + "," * (len(columns) == 1),
        column_names=columns,
        listed=listed(columns),
        quoted="(" + "".join(f'"{name}", ' for name in columns).rstrip(" " if len(columns) == 1 else ", ") + ")",
        state_heads=plan.states is not None and plan.states.by_query_head,
        distances=prologue.distances() if offsets else "",
        distance_names=", ".join(offsets) + "," * (len(offsets) == 1),
        given=", ".join([*given, *more]),
        numbers_call=texts.numbers_call(rows=rows, values=values),
        n=length or f"{core.rows}.shape[2]",
        m=length or f"{core.values}.shape[2]",
        sized_rows=rows,
        sized_values=values,
        rows=sizes[Size.QUERIES],
        keys=sizes[Size.KEYS],
        signature=", ".join(map(declared, spec.data)),
        step_signature=", ".join(before_and_behind(spec.data, "cache: Cache", declared)),
        step_options="".join(f", {each}" for each in ["*", *optional] if optional),
        prefill_options="".join(f", {each}" for each in options),
        anew=decoder.anew,
        blocks=decoder.blocks,
        token_axes=_token_axes(spec),
    )


def _token_axes(spec: Spec) -> str:
    """The text of a table that says which axis of the data of keys is that of the tokens."""
    found = (f'"{each.name}": {each.axes.index(Size.KEYS)}' for each in spec.data if each.is_column)
    return f"{{{', '.join(found)}}}"
