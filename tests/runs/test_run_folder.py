"""The run folder: begun once, continued with the same request only, never written to by two, whole after any cut."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sigmax import SettledCertificate
from sigmax.budget import Budget
from sigmax.errors import InvalidInputError, RecordError
from sigmax.runs import CertificationSpec, Found, RunFolder, format_row, read_run, read_spec, read_table
from sigmax.runs.folder import check_same
from sigmax.runs.table import COLUMNS
from toy import Brighter, point, toy_spec

FOUND = Found(fingerprint="f", data="d", device="cpu", backend="torch 1")
ROW = format_row(0, 1, point(1, 0.5), None, 1.0)
NEXT = format_row(1, 1, point(1, 0.5), None, 1.0)


@pytest.fixture
def spec(tmp_path: Path) -> CertificationSpec:
    return toy_spec(tmp_path, found=FOUND)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_run_is_continued_only_when_asked_and_only_with_its_request(out: Path, spec: CertificationSpec) -> None:
    with RunFolder(out, spec) as run:
        run.append(ROW)
    with pytest.raises(RecordError, match="--resume"):
        RunFolder(out, spec)
    with pytest.raises(RecordError, match=r"budget\.n=300 \(was 200\)"):
        RunFolder(out, replace(spec, budget=Budget(n=300)), resume=True)
    moved = replace(spec, data=replace(spec.data, name="arrays:moved.npz", max=1))
    with RunFolder(out, moved, resume=True) as run:
        assert run.check_rows([0, 5, 10]) == 1
        assert run.check_rows([0]) == 1
        with pytest.raises(RecordError, match="3, 6, 9, …, got 0"):
            run.check_rows([3, 6, 9, 12])
    assert read_spec(out / "config.json") == spec  # as it was begun


def test_all_that_differs_is_named() -> None:
    old = {"budget": {"n": 1, "alpha": 0.001}, "search": {"name": "grid", "upper": 1.0}, "batch": 64}
    check_same(old, dict(reversed(old.items())), "here")
    new = {"budget": {"n": 2, "alpha": 0.001}, "search": {"name": "fixed"}, "batch": 64}
    with pytest.raises(RecordError) as caught:
        check_same(old, new, "here")
    said = str(caught.value)
    assert all(word in said for word in ("here", "budget.n=2", "was 1", "search.name='fixed'", "search.upper=None"))
    assert "alpha" not in said
    assert "batch" not in said


def test_a_run_that_failed_before_its_first_row_is_not_in_the_way(out: Path, spec: CertificationSpec) -> None:
    begun: list[int] = []
    for n in (100, 100, 70):
        with RunFolder(out, replace(spec, budget=Budget(n=n)), on_begin=partial(begun.append, n)) as run:
            assert run.rows == 0
    assert read_spec(out / "config.json").budget.n == 70
    assert begun == [100, 70]


def test_a_run_that_may_not_begin_leaves_the_folder_as_it_was(out: Path, spec: CertificationSpec) -> None:
    def refuse() -> None:
        raise RecordError("not here")

    with pytest.raises(RecordError, match="not here"):
        RunFolder(out, spec, on_begin=refuse)
    assert not (out / "config.json").exists()
    with RunFolder(out, spec):
        pass


def test_a_memory_in_a_folder_without_a_run_is_left_alone(out: Path, spec: CertificationSpec) -> None:
    write(out / "memory.db", "somebody's")
    with RunFolder(out, spec):
        assert (out / "memory.db").exists()


def test_a_broken_row_is_refused_before_any_work(out: Path, spec: CertificationSpec) -> None:
    with RunFolder(out, spec) as run:
        run.append(ROW)
        run.append("\n")
    with RunFolder(out, spec, resume=True) as run, pytest.raises(RecordError, match="0, 1, 2, got 0"):
        run.check_rows([0, 1, 2])


@pytest.mark.parametrize("cut", range(1, 50, 6))
def test_a_line_cut_anywhere_is_removed_on_resume(out: Path, spec: CertificationSpec, cut: int) -> None:
    with RunFolder(out, spec) as run:
        run.append(ROW)
        run.append(NEXT)
    table = out / "certificates.tsv"
    whole = table.read_bytes()
    table.write_bytes(whole[:-cut])
    with RunFolder(out, spec, resume=True) as run:
        assert run.rows == 1
        run.append(NEXT)
    assert table.read_bytes() == whole


def test_two_processes_do_not_write_to_one_run(out: Path, spec: CertificationSpec) -> None:
    with RunFolder(out, spec), pytest.raises(RecordError, match="another process"):
        RunFolder(out, spec, resume=True)
    with RunFolder(out, spec, resume=True) as run:
        assert run.rows == 0


def test_a_full_disk_loses_nothing(out: Path, spec: CertificationSpec) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to write to")
    with RunFolder(out, spec) as run:
        run.append(ROW)
        table, moved = out / "certificates.tsv", out / "moved.tsv"
        table.rename(moved)
        table.symlink_to("/dev/full")
        with pytest.raises(RecordError, match=os.strerror(errno.ENOSPC)):
            run.append(NEXT)
        table.unlink()
        moved.rename(table)
        run.append(NEXT)
        assert run.rows == 2
    assert len(read_table(out)) == 2


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_request_is_refused(out: Path, spec: CertificationSpec, content: str) -> None:
    write(out / "config.json", content)
    with pytest.raises(RecordError, match=r"config\.json"):
        RunFolder(out, spec, resume=True)


def test_a_foreign_table_and_one_without_its_request_are_refused(tmp_path: Path, spec: CertificationSpec) -> None:
    write(tmp_path / "foreign" / "config.json", spec.to_json())
    write(tmp_path / "foreign" / "certificates.tsv", "idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    with pytest.raises(RecordError, match=r"foreign/certificates\.tsv"):
        RunFolder(tmp_path / "foreign", spec, resume=True)
    write(tmp_path / "lonely" / "certificates.tsv", "\t".join(COLUMNS) + "\n" + ROW)
    with pytest.raises(RecordError, match=r"config\.json"):
        RunFolder(tmp_path / "lonely", spec)
    write(tmp_path / "file", "")
    with pytest.raises(RecordError, match="file"):
        RunFolder(tmp_path / "file", spec)


def test_settings_that_only_a_text_could_tell_are_refused(out: Path, spec: CertificationSpec) -> None:
    """The text of a module has no weights, that of a function its place in memory."""
    strange = replace(spec, search=Brighter(initial=0.25, factor=print))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="print"):
        RunFolder(out, strange)
    assert not (out / "config.json").exists()


def test_a_run_has_its_request_and_both_kinds_of_answer(out: Path, spec: CertificationSpec) -> None:
    settled = SettledCertificate(
        label=3, radius=0.25, proof=point(3, 0.5), point=point(2, 0.5), rule="inherited", origin=1
    )
    for resume in (False, True):
        with RunFolder(out, spec, resume=resume) as run:
            run.append(format_row(8 if resume else 7, 3, point(2, 0.5), settled, 1.0))
    read = read_run(out)
    assert (read.name, read.spec) == ("run", spec)
    first = (read.table.predict[0], read.table.radius[0], read.table.point_predict[0], read.table.point_radius[0])
    assert first == (3, 0.25, 2, 0.5)
    assert (read.table.samples.tolist(), read.table.norm) == ([100, 100], 2)
    assert read_run(out / "certificates.tsv").spec == spec
