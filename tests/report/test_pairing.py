"""Which runs belong together: sections, series and pairs, by their records alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from made_up_runs import OneForAll, OwnSearch, Stripes, make_run, make_series, make_spec
from sigmax import AscentSearch, GridSearch, HalvingSearch
from sigmax.noise import Uniform
from sigmax.report.entries import Entry, entries
from sigmax.report.pairing import pairs
from sigmax.report.sections import by_steps, sections
from sigmax.runs import Run, RunFolder, read_run, read_runs
from sigmax.search import FixedSigma, SigmaSearch


def ascent(steps: int, sigma: float = 0.25) -> AscentSearch:
    return AscentSearch(initial=sigma, steps=steps)


@pytest.fixture
def runs() -> list[Run]:
    return make_series()


def paired(runs: Sequence[Run], named: int | None = None) -> list[tuple[str, str]]:
    shown = entries(runs)
    found = pairs(shown, named=None if named is None else shown[named])
    return [(pair.run.name, pair.baseline.name) for pair in found]


def methods(*runs: Run) -> list[str]:
    (section,) = sections(entries(runs))
    return [", ".join(filter(None, method)) for method in section.series]


def entry(run: Run) -> Entry:
    (made,) = entries([run])
    return made


def test_runs_are_paired_grouped_and_ordered_by_their_records(runs: list[Run]) -> None:
    assert paired(runs) == [("k90", "fixed"), ("k10", "fixed")]
    (section,) = sections(entries(runs))
    assert [[run.name for run in series] for series in by_steps(section)] == [["k10", "k90"]]
    assert methods(*runs) == ["fixed sigma", "per-input sigma, bounded ascent"]
    others = [
        make_run("network", [0.5], make_spec(ascent(10), network="another")),
        make_run("sigma", [0.5], make_spec(ascent(10, 0.5))),
        make_run("n", [0.5], make_spec(ascent(10), n=90)),
        make_run("n_wrong", [0.5], make_spec(ascent(10), n_wrong=9)),
    ]
    assert paired([*runs, *others]) == [("k90", "fixed"), ("k10", "fixed")]
    assert len(paired([*runs, *others], named=0)) == 6
    against = paired([*runs, make_run("half", [0.5], make_spec(FixedSigma(0.5)))], named=1)
    assert against == [("fixed", "k90"), ("k10", "k90"), ("half", "k90")]


def test_a_run_is_compared_with_the_baseline_that_shares_most_of_its_inputs() -> None:
    stopped, whole = make_run("a", [0.5], make_spec()), make_run("b", [0.5] * 3, make_spec())
    reseeded = make_run("c", [0.5] * 3, make_spec(seed=8))
    own = make_run("own", [0.6] * 3, make_spec(ascent(10)))
    assert paired([stopped, reseeded, whole, own]) == [("own", "b")]


def test_runs_on_other_data_or_in_another_norm_are_never_compared(runs: list[Run]) -> None:
    """The same places and labels, but corrupted images, say."""
    plain, own = make_run("plain", [0.5], make_spec(digest="clean")), make_spec(ascent(10), digest="corrupted")
    assert paired([plain, make_run("own", [0.6], own)]) == paired([plain, make_run("own", [0.6], own)], named=0) == []
    l1 = make_run("l1", [0.5] * 4, make_spec(noise=Uniform()))
    assert paired([*runs, l1], named=3) == []
    assert len(paired([*runs, l1])) == 2


def test_one_s_own_search_is_what_it_says_it_is(runs: list[Run]) -> None:
    one = make_run("one", [0.4] * 4, make_spec(OneForAll()))
    own = make_run("own", [0.6] * 4, make_spec(OwnSearch()), sigma=[0.2, 0.3, 0.25, 0.25])
    assert (entry(one).is_per_input, entry(one).method, entry(one).upper) == (False, "fixed sigma", None)
    assert (entry(own).is_per_input, entry(own).method, entry(own).upper) == (True, "per-input sigma, my search", 0.3)
    assert entry(own).steps is None
    assert paired([one, own]) == [("own", "one")]
    # Beside ours at the same sigma0, the best of both would be neither.
    of_ours, of_one = methods(runs[0], one)
    assert (of_ours, of_one.partition(", ")[0]) == ("fixed sigma, fixed", "fixed sigma")
    assert "OneForAll" in of_one
    more = make_run("more", [0.4] * 4, make_spec(OneForAll(images=200)))
    assert methods(one, more) == ["fixed sigma, images 100", "fixed sigma, images 200"]


def test_the_best_of_two_noises_is_neither(runs: list[Run]) -> None:
    own = make_run("stripes", [0.4] * 4, make_spec(noise=Stripes(), network="net under stripes"))
    names = methods(runs[0], own)
    assert names[0] == "fixed sigma, gaussian"
    assert "Stripes: height 1.0" in names[1]
    assert paired([own, runs[1]]) == []


def test_the_best_of_two_networks_seeds_backends_or_samplings_is_neither() -> None:
    one = make_run("one", [0.5], make_spec(model="a.pt"))
    other = make_run("other", [0.4], make_spec(model="b.pt", network="other"))
    assert methods(one, other) == ["fixed sigma, a.pt", "fixed sigma, b.pt"]
    higher = make_run("higher", [0.4], make_spec(FixedSigma(0.5), model="b.pt", network="other"))
    assert methods(one, higher) == ["fixed sigma"]  # as the paper, which has a network for each sigma
    loose = make_run("loose", [0.9], make_spec(model="a.pt", alpha=0.5))
    assert methods(one, loose) == ["fixed sigma, alpha = 0.01", "fixed sigma, alpha = 0.5"]
    assert methods(one, make_run("two", [0.5], make_spec(model="a.pt", seed=8))) == [
        "fixed sigma, seed 7",
        "fixed sigma, seed 8",
    ]
    backends = [make_run(name, [0.5], make_spec(model="a.pt", backend=name)) for name in ("torch", "integers")]
    backends.append(make_run("more", [0.5], make_spec(FixedSigma(0.5), model="c.pt", backend="integers")))
    assert methods(*backends) == ["fixed sigma, torch", "fixed sigma, integers"]
    assert methods(*backends[::2]) == ["fixed sigma, torch", "fixed sigma, integers"]  # also at different sigma0


def test_the_best_of_two_searches_is_neither() -> None:
    searches: list[SigmaSearch] = [
        *(FixedSigma(0.25), AscentSearch.paper(initial=0.25, steps=10), AscentSearch.paper(initial=0.25, steps=20)),
        AscentSearch.paper(initial=0.25, step_size=1e-3),
        *(GridSearch(initial=0.25, samples=draws) for draws in (1, 2)),
        *(HalvingSearch(initial=0.25, samples=samples) for samples in (16, 64)),
        AscentSearch(initial=0.25, fixes_class=False, pilot=0),
        AscentSearch(initial=0.25, bounds=(-math.inf, math.inf)),
    ]
    made = [make_run(f"{i}", [0.5], make_spec(search, trained="cohen")) for i, search in enumerate(searches)]
    assert methods(*made) == [
        "cohen",
        "cohen-ds, Algorithm 1",  # over K
        "cohen-ds, Algorithm 1, steps of 0.001",
        "cohen-ds, grid",
        "cohen-ds, grid, 2 draws",
        "cohen-ds, samples 16, halving",
        "cohen-ds, samples 64, halving",
        "cohen-ds, bounded ascent, class free",
        "cohen-ds, unbounded ascent",
    ]


def test_runs_over_other_inputs_or_in_another_norm_have_sections_of_their_own(runs: list[Run]) -> None:
    l1 = make_run("l1", [0.5] * 4, make_spec(noise=Uniform()))
    fewer = make_run("fewer", [0.5] * 3, make_spec())
    parts = sections(entries([*runs, l1, fewer]))
    assert [(part.name, len(part.runs)) for part in parts] == [("toy-l2", 3), ("toy-l1", 1), ("toy-l2-2", 1)]


def test_logs_that_do_not_say_their_sigma_are_not_taken_for_one_sigma() -> None:
    macer, qcrs = (make_run(name, [0.5, 0.25]) for name in ("macer", "qcrs"))
    own = make_run("own", [0.6, 0.3], sigma=[0.2, 0.3])
    assert [entry(run).is_per_input for run in (own, macer)] == [True, None]
    assert (entry(macer).sigma0, entry(macer).upper) == (None, None)
    assert methods(macer, qcrs) == ["macer", "qcrs"]
    assert paired([own, qcrs]) == [("own", "qcrs")]  # the only one there is
    assert paired([own, macer, qcrs]) == []
    assert paired([macer, qcrs], named=0) == [("qcrs", "macer")]


def test_a_log_is_never_paired_with_a_run_of_ours(runs: list[Run]) -> None:
    log = make_run("log", [0.5] * 4, sigma=0.25)
    assert paired([log, *runs[1:]]) == []


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for sigma in ("0.25", "0.5"):
        with RunFolder(tmp_path / sigma / "fixed", make_spec(FixedSigma(float(sigma)))):
            pass
    assert [run.name for run in read_runs([tmp_path]).values()] == ["0.25/fixed", "0.5/fixed"]
    unnamed = [read_run(tmp_path / sigma / "fixed") for sigma in ("0.25", "0.5")]
    assert [run.name for run in entries(unnamed)] == ["fixed", "fixed (2)"]
    named = [replace(run, table=replace(run.table, name=name)) for run in unnamed for name in ("a/b", "a b", "a b (2)")]
    assert [run.name for run in entries(named)] == [  # as files must be named
        *("a/b", "a b (2)", "a b (2) (2)", "a/b (3)", "a b (4)", "a b (2) (3)"),
    ]
