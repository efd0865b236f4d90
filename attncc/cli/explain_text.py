"""The values of an explanation → text for people."""

from __future__ import annotations

from typing import Any

from attncc.cli.render import table

_UNITS = ("", "K", "M", "G", "T", "P")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FIELDS = ("pattern", "score", "weight", "normalize")
_OWN = ("q", "k", "v")  # every attention has these
_STARTS = {
    "end": "row 0 stands at position m - n, the last row at the last key, unless a call says otherwise by q_start",
    "start": "row 0 stands at position 0, as the first key does, unless a call says otherwise by q_start",
}


def as_text(found: dict[str, Any], verbose: bool) -> str:
    """Every section under a heading; `verbose` adds the graph of the backward pass and the other autotune lists."""
    title = _title(found)
    if "branches" in found:
        combined = [*_declared(found["data"]), ("combine", found["combine"])]
        parts = ["\n".join([*title, "", "Meaning", *_rows(combined)])]
        for name, each in found["branches"].items():
            own = {**each, "name": f"Branch {name}", "parameters": {}, "summary": ""}
            parts.append(as_text(own, verbose))
        return "\n\n".join(parts)
    by_data = found["lists"] is not None
    ranges = "What positions allow" if by_data else "Ranges of"
    sections = [
        title,
        ["Meaning", *_rows([*_declared(found["data"]), *_choices(found["choices"]), *_meaning(found["meaning"])])],
        ["Derivation", *_derivation(found["derivation"])],
        ["Laws that do not apply", *_refusals(found["not_applied"])],
        ["Dense graph: what the spec says", *_indent(found["graphs"]["dense"])],
        ["Forward graph: what became of it", *_indent(found["graphs"]["forward"])],
        *([["Backward graph: its gradient", *_indent(found["graphs"]["backward"])]] if verbose else []),
        *([_lists(found["lists"])] if by_data else []),
        [f"{ranges} a tile of rows first … last", *_ranges(found["head_classes"], "by_row")],
        *([[f"{ranges} a tile of keys first … last", *_ranges(found["head_classes"], "by_column")]] if verbose else []),
        *([_pieces(found["pieces"])] if found["pieces"] else []),
        [
            "Proven",
            *_facts(found["head_classes"], by_data),
            *_later(found),
            _decoder(found["decoder"]),
            _whole_numbers(found["longest_call"]),
        ],
        [_at_sizes(found["sizes"]), *_tiles(found["tiles"], by_data)],
        ["What runs, and what would", *_candidates(found["cost"], found["pieces"])],
        ["Cost of a batch entry", *_cost(found["cost"], found["pieces"], by_data)],
        *([_linear(found["linear"])] if found["linear"] else []),
        ["Kept for backward, beside the arguments", *_saved(found)],
        ["Tiles tried on a GPU: rows x columns, warps, stages", *_autotune(found, verbose)],
    ]
    return "\n\n".join("\n".join(section) for section in sections)


def _title(found: dict[str, Any]) -> list[str]:
    parameters = ", ".join(f"{name} = {value}" for name, value in found["parameters"].items())
    title = f"{found['name']} ({parameters})" if parameters else found["name"]
    return [title, *([f"  {found['summary']}"] if found["summary"] else [])]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _rows(rows: Any) -> list[str]:
    return _indent(table(rows).splitlines())


def _declared(data: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a call gives beside queries, keys and values."""
    found = []
    for each in (each for each in data if each["name"] not in _OWN):
        axes = ", ".join(map(str, each["axes"]))
        kind = "int" if each["whole"] else "bool" if each["truth"] else "real" if each["ascending"] else ""
        kind = f": {kind}{' ascending' * each['ascending']}" if kind else ""
        start = "" if each["initial"] is None else f" = {each['initial']:g}"
        found.append((each["role"], f"{each['name']}[{axes}]{kind}{start}"))
    return found


def _choices(choices: dict[str, str]) -> list[tuple[str, str]]:
    """What is chosen by comparing."""
    return [("let", f"{name} = {value}") for name, value in choices.items()]


def _meaning(meaning: dict[str, str | None]) -> list[tuple[str, str]]:
    fields = [(name, said) for name in _FIELDS if (said := meaning[name]) is not None]
    align = str(meaning["align"])
    return [*fields, ("align", f"{align}: {_STARTS[align]}")]


def _derivation(steps: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for step in steps:
        lines.append(f"  {step['law']}: {step['statement']}")
        lines += [f"      {line}" for line in step["before"]]
        lines += [f"    → {line}" for line in step["after"]]
    return lines


def _refusals(refusals: list[dict[str, Any]]) -> list[str]:
    laws: dict[str, list[str]] = {}
    for each in refusals:
        laws.setdefault(each["reason"], []).append(each["law"])
    return _rows((", ".join(names), reason) for reason, names in laws.items()) or ["  none: each one fired"]


def _class_title(one: dict[str, Any]) -> str:
    if one["is_every_head"]:
        return "every head"
    heads = ", ".join(map(str, one["heads"][:8])) + (", …" if len(one["heads"]) > 8 else "")
    return f"heads where {one['condition']} ({heads or 'none of these'})"


def _ranges(classes: list[dict[str, Any]], axis: str) -> list[str]:
    lines: list[str] = []
    for one in classes:
        lines.append(f"  {_class_title(one)}: {one['pattern']}")
        lines += [f"    {line}" for line in table(_visits(one[axis])).splitlines()]
    return lines


def _pieces(pieces: dict[str, Any]) -> list[str]:
    """A heading, and each piece: its pairs, which positions it takes, and the keys of a tile by coordinates."""
    lines = [f"Pieces, in which calls with {pieces['least_keys']:,} keys or more run"]
    for at, piece in enumerate(pieces["pieces"], 1):
        for part in piece["parts"]:
            lines.append(f"  {at}. {_class_title(part)}: {part['pattern']}")
            lines.append(f"    {part['layout']['text']}{', by themselves' if part['alone'] else ''}")
            if not part["layout"]["plain"]:
                lines.append(f"    by coordinates: {part['by_coordinates']}")
            lines += [f"    {line}" for line in table(_visits(part["by_row"])).splitlines()]
    return lines


def _lists(passes: list[dict[str, Any]]) -> list[str]:
    """A heading, and each pass: its pairs, how rows and keys stand, and which keys are listed."""
    lines = ["Lists of tiles, which a call makes of its data, in work that grows as n + m and the tiles that are met"]
    for at, each in enumerate(passes, 1):
        lines.append(f"  {at}. {each['pattern']}")
        lines += [f"    rows {each['rows']}; keys {each['keys']}"]
        lines += [f"    {run}" for run in each["lists"]]
    return lines


def _visits(segments: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = [(f"visits {each['touched']}", f"unmasked {each['full'] or 'nowhere'}") for each in segments]
    return rows or [("visits nothing", "")]


def _facts(classes: list[dict[str, Any]], by_data: bool) -> list[str]:
    lines: list[str] = []
    for one in classes:
        indent = "  "
        if len(classes) > 1:
            lines.append(f"  {_class_title(one)}")
            indent = "    "
        lines += [f"{indent}{line}" for line in _class_facts(one["facts"], by_data)]
    return lines


def _later(found: dict[str, Any]) -> list[str]:
    """That what no query sees may decide what it sees."""
    reason = found["later_choices"]
    sees_none = all(one["facts"]["causal"] for one in found["head_classes"])
    return [f"  but which keys it sees, later ones decide: {reason}"] if reason and sees_none else []


def _decoder(decoder: dict[str, str | None]) -> str:
    refused = decoder["refused"]
    return f"  a decoder keeps {decoder['keeps']}" if refused is None else f"  no decoder: {refused}"


def _class_facts(facts: dict[str, Any], by_data: bool) -> list[str]:
    if facts["empty"]:
        return ["no query sees any key"]
    lines = []
    if facts["full"]:
        lines.append("every query sees every key")
    lines.append("causal: no query sees a later key" if facts["causal"] else "not causal, or not proven to be")
    if facts["self_related"]:
        lines.append("no row is empty in a square call: every query sees its own position")
    else:
        lines.append("rows may be empty: they give 0, and a log-sum-exp of -inf")
    if facts["shift"] == 1:
        lines.append("depends on i - j alone")
    elif facts["shift"] is not None:
        lines.append(f"repeats every {facts['shift']} positions")
    if facts["reach_back"] is not None:
        lines.append(f"looks back at most {facts['reach_back']}")
    if facts["reach_ahead"] is not None and not facts["causal"]:
        lines.append(f"looks ahead at most {facts['reach_ahead']}")
    if by_data:
        return [*lines, "which of these pairs are related, data decide"]
    lines.append(
        "ranges are exact" if facts["exact"] else "ranges are bounds found part by part: they may be wider than needed"
    )
    return lines


def _whole_numbers(longest: int | None) -> str:
    if longest is None:
        return (
            "  not that 32 bits hold every whole number of the kernels: some have no bound that follows from the spec"
        )
    return f"  32 bits hold every whole number of the kernels where positions and lengths are below {longest:,}"


def _at_sizes(sizes: dict[str, int]) -> str:
    return f"At n = {sizes['n']}, m = {sizes['m']}, {sizes['heads']} heads, d = {sizes['d']}, e = {sizes['e']}"


def _tiles(tiles: dict[str, Any], by_data: bool) -> list[str]:
    about = "" if tiles["exact"] else "about "
    if by_data:  # what data leave is not known, only that no tile is met which positions forbid
        return _rows(
            (
                ("tiles of 64 x 64 visited, all of them with a mask", "as data say"),
                ("related pairs", f"at most {about}{tiles['pairs']:,}"),
            )
        )
    share = f" ({tiles['full'] / tiles['touched']:.0%})" if tiles["touched"] else ""
    return _rows(
        (
            (f"tiles of {tiles['rows']} x {tiles['columns']} visited", f"{about}{tiles['touched']:,}"),
            ("without a mask", f"{about}{tiles['full']:,}{share}"),
            ("with a mask", f"{about}{tiles['partial']:,}"),
            ("related pairs", f"{about}{tiles['pairs']:,}"),
            ("scores computed for each related pair", f"{tiles['waste']:.2f}"),
        )
    )


_CANDIDATES = {"lists": "tiles that are listed", "pieces": "in pieces", "whole": "as a whole", "dense": "every pair"}


def _candidates(cost: dict[str, Any], pieces: dict[str, Any] | None) -> list[str]:
    """Scores and FLOPs of each way to compute a call, that which runs marked, and why it does."""
    rows = [("", "scores", "for each related pair", "forward FLOPs", "backward FLOPs")]
    by_data = any(each["name"] == "lists" for each in cost["candidates"])
    for each in cost["candidates"]:
        if each["name"] == "lists":
            rows.append((f"{_CANDIDATES['lists']} (runs)", "as data say", "", "", ""))
            continue
        name = f"{_CANDIDATES[each['name']]}{' (runs)' if each['runs'] else ''}"
        numbers = (each["scores"], each["forward_flops"], each["backward_flops"])
        scores, forward, backward = map(_decimal, numbers)
        rows.append((name, scores, "" if by_data else f"{each['waste']:.2f}", forward, backward))
        if each["name"] == "pieces" and pieces:
            rows += [_piece_row(at, one["tiles"]) for at, one in enumerate(pieces["pieces"], 1)]
    return [*_rows(rows), f"  {cost['choice']}"]


def _piece_row(at: int, tiles: dict[str, Any]) -> tuple[str, str, str, str, str]:
    return f"  piece {at}", _decimal(tiles["scores"]), f"{tiles['waste']:.2f}", "", ""


def _cost(cost: dict[str, Any], pieces: dict[str, Any] | None, by_data: bool) -> list[str]:
    pairs = cost["visited_pairs"]["formulas"]
    sign = "≤" if by_data else "≈"
    known = [f"{sign} {each}" if each is not None else "counted only" for each in pairs]
    rows = [("pairs a head visits, tile edges aside" if by_data else "pairs a head visits", "; ".join(known), "")]
    if not by_data:
        rows.append(("pairs in tiles, all heads", "", _decimal(cost["visited_pairs"]["value"])))
    for name in ("forward", "backward"):
        one = cost[name]
        flops = f"{'≤ ' * by_data}{_decimal(one['flops']['value'])}"
        rows.append((f"{name} FLOPs", _of_pairs(one, "flops", sign), flops))
        if one["channels"]["value"]:
            rows.append((f"{name} by channel", _of_pairs(one, "channels", sign), _decimal(one["channels"]["value"])))
        rows.append((f"{name} bytes", one["bytes"]["formula"], _binary(one["bytes"]["value"])))
    by_channel = any(cost[name]["channels"]["value"] for name in ("forward", "backward"))
    beside = "FLOPs are those of matrix products" if by_channel else "matrix products only"
    notes = [f"  ({beside}; bytes count each tensor once a kernel; b = 2; as many key heads as heads)"]
    if pieces and pieces["run"] and pieces["chained"]:
        notes.append("  (what a row hands on from piece to piece is not among the bytes)")
    if by_channel:
        notes.append("  (by channel: every operation of a formula is one, a tanh as much as a sum)")
    return [*_rows(rows), *notes]


def _linear(linear: dict[str, Any]) -> list[str]:
    """What sums by states cost, and from where on that is less."""
    features, flops, crossover = linear["features"], linear["forward_flops"], linear["crossover"]
    title = f"By states, in blocks of {linear['block']}"
    rows = [
        ("features of a key in a head", features["formula"], _decimal(features["value"])),
        ("blocks met pair by pair by a block of rows", "", f"{linear['blocks_at_ends']:.1f}"),
        ("forward FLOPs", f"≈ {flops['formula']}", _decimal(flops["value"])),
    ]
    if crossover is None:
        note = "  (both ways grow as n does: what is less depends on widths and the pattern alone)"
        return [title, *_rows(rows), note]
    rows.append(("fewer than pair by pair where n = m is above", crossover["formula"], _decimal(crossover["value"])))
    return [title, *_rows(rows)]


def _of_pairs(one: dict[str, Any], what: str, sign: str) -> str:
    formula = one[what]["formula"]
    return f"{sign} {formula}" if formula is not None else f"({one[f'{what}_per_pair']}) a pair"


def _saved(found: dict[str, Any]) -> list[str]:
    names = (["out (and what 16 bits lose of it)"] if found["saved"]["out"] else []) + [
        *(f"{name} (a number a row)" for name in found["saved"]["row_numbers"]),
        *(f"{name} ({kind})" for name, kind in found["saved"]["derived"].items()),
    ]
    saved, dense = found["cost"]["saved_bytes"], found["cost"]["dense_matrix_bytes"]
    rows = _rows(
        (
            (", ".join(names) or "nothing", saved["formula"] if names else "", _binary(saved["value"])),
            ("a dense matrix of weights would take", dense["formula"], _binary(dense["value"])),
        )
    )
    if found["saved"]["derived"]:
        rows.append(
            "  (plain operations of torch derive operands from arguments; what autograd keeps of those comes on top)"
        )
    return rows


def _autotune(found: dict[str, Any], verbose: bool) -> list[str]:
    width = max(found["sizes"]["d"], found["sizes"]["e"])
    rows = []
    for kernel in dict.fromkeys(each["kernel"] for each in found["autotune"]):
        lists = [each for each in found["autotune"] if each["kernel"] == kernel]
        fitting = [each for each in lists if each["width"] >= width and each["element_bytes"] == 2]
        for each in lists if verbose else fitting[:1]:
            tries = "; ".join(map(_tile, each["tries"]))
            if each["with_sums"] is not None:  # what it has where kernels of sums do the tiles without masks
                tries += f"; by states {_tile(each['with_sums'])}"
            rows.append((kernel, f"{each['element_bytes']} bytes, width up to {each['width']}", tries))
    return _rows(rows) if rows else ["  no list for this width: the torch form runs"]


def _tile(tile: dict[str, int]) -> str:
    return f"{tile['rows']}x{tile['columns']}, {tile['warps']}, {tile['stages']}"


def _decimal(value: int) -> str:
    return _scaled(value, 1000, _UNITS, "")


def _binary(value: int) -> str:
    return _scaled(value, 1024, _BINARY_UNITS, " ")


def _scaled(value: int, step: int, units: tuple[str, ...], gap: str) -> str:
    scaled, at = float(value), 0
    while scaled >= step and at < len(units) - 1:
        scaled, at = scaled / step, at + 1
    return f"{value}{gap}{units[0]}" if at == 0 else f"{scaled:.3g}{gap or ' '}{units[at]}"
