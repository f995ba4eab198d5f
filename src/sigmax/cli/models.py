"""`sigmax models`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from sigmax.cli.console import out_console, print_whole, say
from sigmax.cli.groups import command
from sigmax.rounding import format_nearest

if TYPE_CHECKING:
    from sigmax.cards import ModelCard


@command
def models(as_json: bool = False) -> None:
    """List the networks of this package: their data, sigma, accuracy under noise, size and licence.

    Example: `sigmax models`
    """
    from sigmax.cards import ZOO, ZOO_ALIASES, read_card, zoo, zoo_file

    known = zoo()
    names = sorted([*known, *(alias for alias, name in ZOO_ALIASES.items() if name in known)])
    cards = {name: card for name in names if (card := read_card(zoo_file(name))) is not None}
    sizes = {name: zoo_file(name).stat().st_size for name in cards}
    if as_json:
        found = [{"name": ZOO + name, "bytes": sizes[name], **asdict(card)} for name, card in cards.items()]
        out_console.print_json(json.dumps(found))
        return
    rows = []
    for name in known:
        card = cards[name]
        about = {"name": f"{ZOO}{name}", "data": card.data or "-", "sigma": _sigma(card), "noise": card.noise or "-"}
        about |= {"method": card.method or "-", "accuracy under noise": _accuracy(card)}
        rows.append(about | {"MB": f"{sizes[name] / 1e6:.1f}", "licence": card.licence or "-"})
    shared = _shared(rows)
    view = _view(rows, shared)
    if out_console.is_terminal:
        out_console.print(view)  # accuracies wrap
    else:
        print_whole(view)
    same = ", ".join(f"{key} {value}" for key, value in shared.items())
    say(f"All: {same}.\nAccuracy: of unseen images, one draw of noise each, at the sigma named.")
    for alias in sorted(cards.keys() - set(known)):
        say(f"{ZOO}{alias} is {ZOO}{ZOO_ALIASES[alias]}")


def _shared(rows: list[dict[str, str]]) -> dict[str, str]:
    """What all networks have in common is said once, so that the table fits a terminal."""
    return {key: value for key, value in rows[0].items() if all(row[key] == value for row in rows[1:])}


def _view(rows: list[dict[str, str]], shared: dict[str, str]) -> Table:
    view = Table(box=None)
    for name in rows[0]:
        if name not in shared:
            view.add_column(name, no_wrap=name != "accuracy under noise")
    for row in rows:
        cells = (value for name, value in row.items() if name not in shared)
        view.add_row(*cells)
    return view


def _sigma(card: "ModelCard") -> str:
    levels = card.sigma_range or ((card.sigma,) if card.sigma is not None else ())
    return " to ".join(f"{level:g}" for level in levels) or "-"


def _accuracy(card: "ModelCard") -> str:
    return ", ".join(f"{format_nearest(share)} at {sigma:g}" for sigma, share in card.noisy_accuracy) or "-"
