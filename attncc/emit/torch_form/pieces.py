"""The pieces of a pattern in the torch form: their ranges and pairs by coordinates, and the strips of each class."""

from __future__ import annotations

from attncc.emit.torch_form.pattern import PatternPrinter
from attncc.emit.writer import Writer
from attncc.plan.layout import Layout, Strips
from attncc.plan.pieces import Part, Piece, Pieces
from attncc.spec.expr import Name, names_in

_STRIPS = '''
class _Strips(NamedTuple):
    """The positions p with start <= p % period < start + width; coordinates count them.<ENDS>"""

    period: int = 1
    width: int = 1
    start: int = 0
<LIST>
    def below(self, position):
        """How many of the positions from 0 on lie before one."""
<CLIP>        rest = position % self.period - self.start
        return self.width * (position // self.period) + min(max(rest, 0), self.width)

    def at(self, coordinate):
        """The position at a coordinate."""
        strip, rest = coordinate // self.width, coordinate % self.width
        return self.period * strip + self.start + rest

    def places(self, first, stop, origin, device):
        """Where coordinates first … stop - 1 lie among tokens that begin at position `origin`."""
        if self.width > 1 and self.width < self.period:
            return self.at(torch.arange(first, stop, device=device)) - origin
        if first == stop:
            return slice(0, 0)
        step = self.period // self.width
        return slice(self.at(first) - origin, self.at(stop - 1) - origin + 1, step)


class _Piece(NamedTuple):
    """A part of the pattern that runs apart; `segments` and `related` read coordinates.

    `layouts` has, for each class of rows, the strips of its rows and of its keys.
    """

    segments: Callable
    related: Callable
    layouts: tuple
    shifts: bool  # whether pairs are related by their distance alone
<ALONE>

class _Part(NamedTuple):
    """One class of rows of a piece, with its keys and where they lie."""

    piece: _Piece
    rows: _Strips
    keys: _Strips
    places: slice | Tensor
    call: _Call
    begins: bool  # whether no part of these rows came before
    finishes: bool  # whether none follows
<ADDS>

_AS_THEY_STAND = ((_Strips(), _Strips()),)
'''

# What is put into these where some rows form a list, or a piece of their own.
_ENDS = """\


    A list has only those of them that lie before `stop`, and not before `first`.
    """
_LIST = """\
    first: int = -_FAR
    stop: int = _FAR
"""
_CLIP = """\
        position = min(max(position, self.first), self.stop)
"""
_ALONE = """\
    alone: bool = False  # whether it has all pairs of its rows
"""
_ADDS = """\
    adds: bool  # whether gradients of these rows are there already
"""

_PARTS = '''
def _parts(call, k_start, device):
    """What runs apart, one after the other, for the heads of a call."""
    pieces = _pieces(call)
    for piece in pieces:
        for residue, (rows, keys) in enumerate(piece.layouts):
            low, high = keys.below(k_start), keys.below(k_start + call.m)
            places = keys.places(low, high, k_start, device)
            own = call._replace(residue=residue)
            yield _Part(piece, rows, keys, places, own, piece is pieces[0], piece is pieces[-1])
'''

_PARTS_WITH_OWN_ROWS = '''
def _parts(call, k_start, device):
    """What runs apart, one after the other, for the heads of a call.

    Pieces with rows of their own come last, and write over what others made of these rows.
    """
    pieces = _pieces(call)
    shared = [piece for piece in pieces if not piece.alone]
    for piece in pieces:
        begins, finishes = piece.alone or piece is shared[0], piece.alone or piece is shared[-1]
        for residue, (rows, keys) in enumerate(piece.layouts):
            low, high = keys.below(k_start), keys.below(k_start + call.m)
            places = keys.places(low, high, k_start, device)
            own = call._replace(residue=residue)
            adds = piece is not shared[0]
            yield _Part(piece, rows, keys, places, own, begins, finishes, adds)
'''


class PiecesPrinter:
    """Prints what a module has to know of its pieces."""

    def __init__(self, pieces: Pieces, pattern: PatternPrinter, whole_shifts: bool) -> None:
        self._pieces = pieces
        self._pattern = pattern
        self._whole_shifts = whole_shifts

    def print(self, writer: Writer) -> None:
        """Ranges, pairs, strips, and which pieces a call has."""
        lists, alone = self._pieces.have_lists, self._pieces.have_own_rows
        text = _STRIPS.replace("<LIST>\n", f"{_LIST}\n" if lists else "\n").replace("<CLIP>", _CLIP if lists else "")
        text = text.replace("<ENDS>", _ENDS if lists else "")
        text = text.replace("<ALONE>\n", f"{_ALONE}\n" if alone else "\n").replace("<ADDS>", _ADDS if alone else "")
        writer.lines(text)
        for at, piece in enumerate(self._pieces.pieces, 1):
            classes = [part.one for part in piece.parts]
            writer.line()
            writer.line()
            self._pattern.print_segments(writer, f"_segments_{at}", classes, "coordinates")
            writer.line()
            writer.line()
            self._pattern.print_related(writer, f"_related_{at}", classes)
        writer.line()
        writer.line()
        for at, piece in enumerate(self._pieces.pieces, 1):
            if any(not part.layout.is_plain for part in piece.parts):
                writer.line(f"_CLASSES_{at} = ({', '.join(_layouts(part.layout) for part in piece.parts)},)")
        writer.line(f"_LEAST_KEYS = {self._pieces.least}  # shorter calls take the pattern as a whole, as costs less")
        writer.line()
        writer.line()
        self._print_pieces(writer)
        writer.line()
        writer.lines(_PARTS_WITH_OWN_ROWS if alone else _PARTS)

    def _print_pieces(self, writer: Writer) -> None:
        with writer.block("def _pieces(call):"):
            writer.line('"""The pieces that a call takes."""')
            whole = f"_Piece(_segments, _related, _AS_THEY_STAND, {self._whole_shifts})"
            with writer.block("if call.m < _LEAST_KEYS:"):
                writer.line(f"return ({whole},)")
            conditions = dict.fromkeys(part.one.condition for piece in self._pieces.pieces for part in piece.parts)
            for condition in list(conditions)[:-1]:
                with writer.block(f"if {self._pattern.host(condition)}:"):
                    self._print_pieces_of(writer, condition)
            self._print_pieces_of(writer, list(conditions)[-1])

    def _print_pieces_of(self, writer: Writer, condition: object) -> None:
        writer.line("return (")
        with writer.indented():
            for at, piece in enumerate(self._pieces.pieces, 1):
                own = next((k for k, each in enumerate(piece.parts) if each.one.condition == condition), None)
                if own is not None:
                    part = piece.parts[own]
                    layouts = "_AS_THEY_STAND" if part.layout.is_plain else f"_CLASSES_{at}[{own}]"
                    about = f"{layouts}, {_shifts(piece, part)}{', alone=True' if part.alone else ''}"
                    writer.line(f"_Piece(_segments_{at}, _related_{at}, {about}),")
        writer.line(")")


def _shifts(piece: Piece, part: Part) -> bool:
    """Whether pairs are related by the distance of their coordinates alone, the same for every class and head."""
    return len(piece.parts) == 1 and part.one.facts.shift == 1 and names_in(part.one.pattern) <= {Name.I, Name.J}


def _layouts(layout: Layout) -> str:
    if layout.is_plain:
        return "_AS_THEY_STAND"
    both = f"({_strips(layout.rows)}, {_strips(layout.keys)})"
    return f"tuple({both} for r in range({layout.classes}))" if layout.rows.turn else f"({both},)"


def _strips(strips: Strips) -> str:
    if strips.is_everything:
        return "_Strips()"
    if strips.is_list:
        ends = {"first": strips.first, "stop": strips.stop}
        return f"_Strips({', '.join(f'{name}={end}' for name, end in ends.items() if end is not None)})"
    if not strips.turn:
        return f"_Strips({strips.period}, {strips.width}, {strips.start})"
    own = "r" if strips.width == 1 else f"{strips.width} * r"
    if strips.turn == 1 and strips.start == 0:
        start = own
    elif strips.turn == 1:
        start = f"({own} + {strips.start}) % {strips.period}"
    else:
        start = f"({strips.start} - {own}) % {strips.period}"
    return f"_Strips({strips.period}, {strips.width}, {start})"
