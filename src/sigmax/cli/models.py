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
    view = Table("name", "data", "sigma", "noise", "method", "accuracy under noise", "MB", "licence", box=None)
    for name, card in cards.items():
        same = f" (= {ZOO_ALIASES[name]})" if name in ZOO_ALIASES else ""
        about = [card.data or "-", _sigma(card), card.noise or "-", card.method or "-", _accuracy(card)]
        view.add_row(f"{ZOO}{name}{same}", *about, f"{sizes[name] / 1e6:.1f}", card.licence or "-")
    print_whole(view)
    say("Accuracy: images that the training did not see, one draw of noise each, at the sigma named.")


def _sigma(card: "ModelCard") -> str:
    levels = card.sigma_range or ((card.sigma,) if card.sigma is not None else ())
    return " to ".join(f"{level:g}" for level in levels) or "-"


def _accuracy(card: "ModelCard") -> str:
    return ", ".join(f"{format_nearest(share)} at {sigma:g}" for sigma, share in card.noisy_accuracy) or "-"
