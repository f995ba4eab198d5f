"""Things that are asked for by name: ours, those of the user's own, and those that are spelt wrong."""

from pathlib import Path

import pytest

from sigmax import Gaussian, HalvingSearch, SigmaSearch, SmoothingDistribution, Uniform
from sigmax.errors import InvalidInputError
from sigmax.named import find_class, import_own, name_of, named_classes
from toy import Brighter, Wide


def test_things_name_and_describe_themselves() -> None:
    assert set(named_classes(SmoothingDistribution).values()) == {Gaussian, Uniform}  # type: ignore[type-abstract]
    for base in (SigmaSearch, SmoothingDistribution):
        for name, kind in named_classes(base).items():
            assert name_of(kind) == kind.name == name
            assert len(kind.description().split()) > 2


def test_ones_own_is_named_by_its_place_and_found_there() -> None:
    assert [name_of(kind) for kind in (Brighter, Wide)] == ["toy:Brighter", "toy:Wide"]
    assert find_class(SigmaSearch, "toy:Brighter") is Brighter  # type: ignore[type-abstract]
    assert find_class(SigmaSearch, "halving") is HalvingSearch  # type: ignore[type-abstract]
    assert "toy:Brighter" not in named_classes(SigmaSearch)  # type: ignore[type-abstract]


def test_ones_own_is_found_beside_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    assert import_own("beside:answer") == 42


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("halvin", r"did you mean halving\?"),
        ("asscent", r"did you mean ascent\?"),
        ("nonsense", "got 'nonsense'$"),  # nothing is spelt like it
        ("toy:Brightr", "Brightr"),
        ("toy:Wide", "SigmaSearch"),
        ("toy:half_space", "half_space"),
        ("sigmax.search:SigmaSearch", "SigmaSearch"),  # abstract
        ("no_such_module:Search", "no_such_module"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        find_class(SigmaSearch, name)  # type: ignore[type-abstract]


@pytest.mark.parametrize("line", ["raise KeyError('x')", "raise SystemExit(3)", "1 / 0", "import no_such_module"])
def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    (tmp_path / "failing.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInputError, match="failing"):
        import_own("failing:Search")
