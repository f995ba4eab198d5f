import errno
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmax import PointCertificate, SettledCertificate
from sigmax.errors import RecordError
from sigmax.records import COLUMNS, RunFolder, format_row, read_run, read_table

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = "0\t3\t3\t0.377\t1\t0:00:14.172309\n1\t8\t-1\t0.0\t0\t0:00:14.1\n2\t5\t6\t0.2\t0\t0:00:13\n"
REORDERED = (
    "time\tradius\tbest_sigma\tidx\tpredict\tlabel\n14.17\t0.377\t0.3\t0\t3\t3\n"
    "14.1\t0.0\t0.2\t1\t-1\t8\n13\t0.2\t0.1\t2\t6\t5\n"
)
CONFIG: dict[str, Any] = {"sigma": 0.25, "n": 100}


def point(label: int | None, radius: float) -> PointCertificate:
    return PointCertificate(label=label, radius=radius, sigma=0.25, p_lower=0.9, n=100, alpha=0.001, norm=2)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROWS,
        (HEADER + ROWS).replace("\n", "\r\n"),
        (HEADER + ROWS).replace("\t", " \t "),
        (HEADER + ROWS).rstrip("\n"),  # complete, but for the end of the line
        (HEADER + ROWS.replace(":13\n", ":13.002")),  # only the time is incomplete
        HEADER + ROWS + "3\t1\t1\t0.1",  # cut off in mid-line
        HEADER + ROWS + "3\t1\t1\t0.1234",
        HEADER + ROWS + "\n",
        # `correct` as a running count
        HEADER + "0\t3\t3\t0.377\t1\t14.17\n1\t8\t-1\t0.0\t1\t14.1\n2\t5\t6\t0.2\t1\t13\n",
        # extra columns in another order
        REORDERED,
    ],
)
def test_logs_of_every_shape_read_alike(tmp_path: Path, text: str) -> None:
    table = read_table(write(tmp_path / "log.tsv", text))
    assert table.idx.tolist() == [0, 1, 2]
    assert table.predict.tolist() == [3, -1, 6]
    assert table.radius.tolist() == [0.377, 0.0, 0.2]
    assert table.is_correct.tolist() == [True, False, False]
    assert table.seconds == pytest.approx([14.17, 14.1, 13], abs=0.003)
    assert not table.is_settled


def test_a_cut_last_line_is_counted_and_a_cut_number_is_not_trusted(tmp_path: Path) -> None:
    cut = write(tmp_path / "cut.tsv", HEADER + ROWS + "3\t1\t1\t0.1")
    assert read_table(cut).dropped == 1
    # All columns are there, but the last is a radius that may go on: 0.3 of 0.377.
    other = write(tmp_path / "other.tsv", "idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n1\t1\t1\t0.3")
    table = read_table(other)
    assert (len(table), table.dropped) == (1, 1)


def test_a_log_of_a_header_only_has_no_rows(tmp_path: Path) -> None:
    assert len(read_table(write(tmp_path / "log.tsv", HEADER))) == 0
    assert len(read_table(write(tmp_path / "log2.tsv", HEADER.rstrip()))) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("a\tb\n1\t2\n", "first line with the columns idx, label, predict, radius"),
        (HEADER + "0\t3\n" + ROWS, "expected 6 columns in line 2, got 2"),
        (HEADER + ROWS.replace("0.377", "x"), "expected numbers"),
        (HEADER + ROWS.replace("0.377", "-0.1"), "expected numbers"),
        (HEADER + ROWS.replace("0.377", "nan"), "expected numbers"),
        (HEADER + ROWS.replace("0.377", "inf"), "expected numbers"),
    ],
)
def test_what_is_no_log_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "strange.tsv", text)
    with pytest.raises(RecordError, match=f"strange.tsv: .*{message}"):
        read_table(path)


def test_binary_rubbish_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rubbish.tsv").write_bytes(bytes(range(128, 256)))
    for name in ("rubbish.tsv", "missing.tsv"):
        with pytest.raises(RecordError, match=name):
            read_table(tmp_path / name)


def test_times_beyond_a_day_are_read(tmp_path: Path) -> None:
    text = HEADER + "0\t3\t3\t0.1\t1\t1 day, 2:00:01.5\n1\t3\t3\t0.1\t1\t?\n"
    seconds = read_table(write(tmp_path / "log.tsv", text)).seconds
    assert seconds[0] == 86_400 + 7_201.5
    assert np.isnan(seconds[1])


def test_rows_come_back_at_full_precision(tmp_path: Path) -> None:
    settled = SettledCertificate(label=4, radius=1 / 3, sigma=0.1 + 0.2, point=point(5, 0.7), rule="inherited")
    with RunFolder(tmp_path / "run", CONFIG) as run:
        run.append(format_row(7, 4, point(5, 0.7), settled, 1.25))
        run.append(format_row(9, 4, point(None, 0.0), None, 0.5))
    table = read_table(tmp_path / "run")
    assert table.name == "run"
    assert table.radius.tolist() == [1 / 3, 0.0]
    assert table.sigma.tolist() == [0.1 + 0.2, 0.25]
    assert table.predict.tolist() == [4, -1]
    assert table.rule == ("inherited", "point")
    assert table.is_settled
    first = (tmp_path / "run" / "certificates.tsv").read_text().splitlines()[1].split("\t")
    named = dict(zip(COLUMNS, first, strict=True))
    assert COLUMNS[:6] == ("idx", "label", "predict", "radius", "correct", "time")
    assert (named["time"], named["correct"], named["point_predict"], named["point_radius"]) == (
        *("0:00:01.250000", "1", "5", "0.7"),
    )


def test_a_run_is_continued_only_when_asked_and_only_with_its_settings(tmp_path: Path) -> None:
    with RunFolder(tmp_path, CONFIG | {"notes": {"model": "here"}}) as run:
        run.append(format_row(0, 1, point(1, 0.5), None, 1.0))
    with pytest.raises(RecordError, match="add --resume"):
        RunFolder(tmp_path, CONFIG)
    with pytest.raises(RecordError, match=r"n=200 \(was 100\); choose another folder"):
        RunFolder(tmp_path, CONFIG | {"n": 200}, resume=True)
    with pytest.raises(RecordError, match=r"seed=1 \(was None\)"):
        RunFolder(tmp_path, CONFIG | {"seed": 1}, resume=True)
    with RunFolder(tmp_path, CONFIG | {"notes": {"model": "there"}}, resume=True) as run:
        assert run.check_rows([0, 5, 10]) == 1
        assert run.check_rows([0]) == 1
        with pytest.raises(RecordError, match=r"begin with the inputs 3, 6, 9, …, got 0; use the --skip"):
            run.check_rows([3, 6, 9, 12])


def test_a_run_that_failed_before_its_first_row_is_not_in_the_way(tmp_path: Path) -> None:
    begun: list[int] = []
    for n in (100, 100, 7):
        with RunFolder(tmp_path, CONFIG | {"n": n}, on_begin=partial(begun.append, n)) as run:
            assert run.rows == 0
    assert json.loads((tmp_path / "config.json").read_text())["n"] == 7
    assert begun == [100, 7]


def test_a_run_that_may_not_begin_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def refuse() -> None:
        raise RecordError("not here")

    with pytest.raises(RecordError, match="not here"):
        RunFolder(tmp_path, CONFIG, on_begin=refuse)
    assert not (tmp_path / "config.json").exists()
    with RunFolder(tmp_path, CONFIG):
        pass


def test_a_memory_in_a_folder_without_a_run_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "memory.db", "somebody's")
    with RunFolder(tmp_path, CONFIG):
        assert (tmp_path / "memory.db").exists()


def test_a_broken_row_is_refused_before_any_work(tmp_path: Path) -> None:
    with RunFolder(tmp_path, CONFIG) as run:
        run.append(format_row(0, 1, point(1, 0.5), None, 1.0))
        run.append("\n")
    with RunFolder(tmp_path, CONFIG, resume=True) as run, pytest.raises(RecordError, match="begin with the inputs"):
        run.check_rows([0, 1, 2])


@pytest.mark.parametrize("cut", range(1, 50, 6))
def test_a_line_cut_anywhere_is_removed_on_resume(tmp_path: Path, cut: int) -> None:
    with RunFolder(tmp_path, CONFIG) as run:
        run.append(format_row(0, 1, point(1, 0.5), None, 1.0))
        run.append(format_row(1, 1, point(1, 0.5), None, 1.0))
    table = tmp_path / "certificates.tsv"
    whole = table.read_bytes()
    table.write_bytes(whole[:-cut])
    with RunFolder(tmp_path, CONFIG, resume=True) as run:
        assert run.rows == 1
        run.append(format_row(1, 1, point(1, 0.5), None, 1.0))
    assert table.read_bytes() == whole


def test_two_processes_do_not_write_to_one_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path, CONFIG), pytest.raises(RecordError, match="only writer"):
        RunFolder(tmp_path, CONFIG, resume=True)
    with RunFolder(tmp_path, CONFIG, resume=True) as run:
        assert run.rows == 0


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to write to")
    with RunFolder(tmp_path, CONFIG) as run:
        run.append(format_row(0, 1, point(1, 0.5), None, 1.0))
        table, moved = tmp_path / "certificates.tsv", tmp_path / "moved.tsv"
        table.rename(moved)
        table.symlink_to("/dev/full")
        with pytest.raises(RecordError, match=os.strerror(errno.ENOSPC)):
            run.append(format_row(1, 1, point(1, 0.5), None, 1.0))
        table.unlink()
        moved.rename(table)
        run.append(format_row(1, 1, point(1, 0.5), None, 1.0))
        assert run.rows == 2
    assert len(read_table(tmp_path)) == 2


def test_a_broken_configuration_and_a_foreign_table_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for content in ("{", "[1]"):
        write(broken / "config.json", content)
        with pytest.raises(RecordError, match="configuration of a run"):
            RunFolder(broken, CONFIG, resume=True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    write(foreign / "config.json", json.dumps(CONFIG))
    write(foreign / "certificates.tsv", HEADER + ROWS)
    with pytest.raises(RecordError, match="another first line"):
        RunFolder(foreign, CONFIG, resume=True)
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    write(lonely / "certificates.tsv", HEADER)
    write(lonely / "certificates.tsv", "\t".join(COLUMNS) + "\n" + format_row(0, 1, point(1, 0.5), None, 1.0))
    with pytest.raises(RecordError, match=r"expected config\.json beside"):
        RunFolder(lonely, CONFIG)
    write(tmp_path / "file", "")
    with pytest.raises(RecordError, match="folder for the run"):
        RunFolder(tmp_path / "file", CONFIG)


def test_settings_that_only_a_text_could_tell_are_refused(tmp_path: Path) -> None:
    """The text of a module has no weights, that of a function its place in memory."""
    with pytest.raises(RecordError, match=r"expected settings of plain values, got .*let settings\(\) of the search"):
        RunFolder(tmp_path / "run", {**CONFIG, "search": {"kind": "Mine", "predictor": print}})
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_has_its_configuration_and_both_kinds_of_answer(tmp_path: Path) -> None:
    settled = SettledCertificate(label=3, radius=0.25, sigma=0.25, point=point(2, 0.5), rule="inherited")
    config = {**CONFIG, "bounds": (0.1, 0.2), "notes": {"model": "mine"}}
    for resume in (False, True):  # a tuple that was read back as a list is no other setting
        with RunFolder(tmp_path / "run", config, resume=resume) as run:
            run.append(format_row(8 if resume else 7, 3, point(2, 0.5), settled, 1.0))
    read = read_run(tmp_path / "run")
    assert (read.name, read.config["sigma"], read.note("model"), read.note("data")) == ("run", 0.25, "mine", None)
    first = (read.table.predict[0], read.table.radius[0], read.table.point_predict[0], read.table.point_radius[0])
    assert first == (3, 0.25, 2, 0.5)
    assert (read.table.samples.tolist(), read.table.norm) == ([100, 100], 2)


def test_an_input_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"log.tsv: expected every input once, got input 0 again"):
        read_table(write(tmp_path / "log.tsv", HEADER + ROWS + ROWS))


def test_to_abstain_is_never_right(tmp_path: Path) -> None:
    read = read_table(write(tmp_path / "log.tsv", "idx\tlabel\tpredict\tradius\n0\t-1\t-1\t0.5\n"))
    assert read.is_correct.tolist() == [False]


def test_a_log_of_others_has_no_configuration_even_beside_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    read = read_run(write(tmp_path / "log.tsv", HEADER + ROWS))
    assert read.config == {}
    assert read.table.point_radius.tolist() == read.table.radius.tolist()
    assert read.table.samples.tolist() == [0, 0, 0]


def test_a_log_with_an_endless_sigma_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("idx\tlabel\tpredict\tradius\tsigma\n0\t1\t1\t0.5\tinf\n")
    with pytest.raises(RecordError, match="sigma 'inf'"):
        read_table(path)


def test_a_run_goes_on_only_by_the_engine_it_was_begun_with(tmp_path: Path) -> None:
    def opened(**notes: str) -> RunFolder:
        return RunFolder(tmp_path / "run", {"n": 5, "notes": notes}, resume=True)

    with opened(engine="torch 1") as run:
        run.append(format_row(0, 1, point(1, 0.5), None, 1.0))
    with opened(engine="torch 1", model="moved"):
        pass  # other notes are for people
    with pytest.raises(RecordError, match="engine='torch 2'"):
        opened(engine="torch 2")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"engine": "torch 1"', '"model": "old"'))
    with opened(engine="torch 2"):
        pass  # a record that does not say it
