"""The certificate table: ours at full precision, and the logs of others in every shape."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sigmax import PointCertificate, SettledCertificate
from sigmax.errors import RecordError
from sigmax.runs import RunFolder, format_row, read_run, read_table
from sigmax.runs.table import COLUMNS, point_part, without_time
from toy import point, toy_spec

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = "0\t3\t3\t0.377\t1\t0:00:14.172309\n1\t8\t-1\t0.0\t0\t0:00:14.1\n2\t5\t6\t0.2\t0\t0:00:13\n"
REORDERED = (
    "time\tradius\tbest_sigma\tidx\tpredict\tlabel\n14.17\t0.377\t0.3\t0\t3\t3\n"
    "14.1\t0.0\t0.2\t1\t-1\t8\n13\t0.2\t0.1\t2\t6\t5\n"
)


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
    ("text", "says"),
    [
        ("", "idx"),
        ("a\tb\n1\t2\n", "'a', 'b'"),
        (HEADER + "0\t3\n" + ROWS, "line 2"),
        (HEADER + ROWS + ROWS, "input 0"),  # appended to
        (HEADER + ROWS.replace("0.377", "x"), "'x'"),
        (HEADER + ROWS.replace("0.377", "-0.1"), "'-0.1'"),
        (HEADER + ROWS.replace("0.377", "nan"), "'nan'"),
        (HEADER + ROWS.replace("0.377", "inf"), "'inf'"),
        ("idx\tlabel\tpredict\tradius\tsigma\n0\t1\t1\t0.5\tinf\n", "sigma 'inf'"),
        ("idx\tlabel\tpredict\tradius\tnorm\n0\t1\t1\t0.5\t1\n1\t1\t1\t0.5\t2\n", "norm"),
    ],
)
def test_what_is_no_log_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "strange.tsv", text)
    with pytest.raises(RecordError, match=rf"strange\.tsv: .*{says}"):
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
    proof = replace(point(4, 0.9), sigma=0.1 + 0.2)
    settled = SettledCertificate(label=4, radius=1 / 3, proof=proof, point=point(5, 0.7), rule="inherited", origin=1)
    with RunFolder(tmp_path / "run", toy_spec(tmp_path)) as run:
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


def test_a_row_has_the_numbers_of_the_certificate_behind_its_answer(tmp_path: Path) -> None:
    own, other = point(4, 0.3), PointCertificate(label=4, radius=0.8, sigma=0.5, p_lower=0.95, n=50, alpha=0.01, norm=2)
    recalled = SettledCertificate(label=4, radius=0.8, proof=other, point=other, rule="kept")
    named = dict(zip(COLUMNS, format_row(7, 4, own, recalled, 1.0).rstrip("\n").split("\t"), strict=True))
    assert named["rule"] == "recalled"
    assert [named[name] for name in ("sigma", "p_lower", "n", "alpha")] == ["0.5", "0.95", "50", "0.01"]
    assert [named[f"point_{name}"] for name in ("sigma", "p_lower", "n", "alpha")] == ["0.25", "0.9", "100", "0.001"]
    with RunFolder(tmp_path / "run", toy_spec(tmp_path)) as run:
        run.append(format_row(7, 4, own, recalled, 1.0))
        run.append(format_row(8, 4, own, None, 1.0))
    table = read_table(tmp_path / "run")
    assert (table.alpha, table.samples.tolist()) == (0.01, [100, 100])  # the weakest; what this run has drawn


def test_to_abstain_is_never_right(tmp_path: Path) -> None:
    read = read_table(write(tmp_path / "log.tsv", "idx\tlabel\tpredict\tradius\n0\t-1\t-1\t0.5\n"))
    assert read.is_correct.tolist() == [False]


def test_a_log_of_others_has_no_request_even_beside_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    read = read_run(write(tmp_path / "log.tsv", HEADER + ROWS))
    assert read.spec is None
    assert read.table.point_radius.tolist() == read.table.radius.tolist()
    assert read.table.samples.tolist() == [0, 0, 0]


def test_rows_are_compared_without_what_is_another_each_time() -> None:
    settled = SettledCertificate(label=4, radius=0.5, proof=point(4, 0.7), point=point(4, 0.7), rule="truncated")
    first = format_row(7, 4, point(4, 0.7), settled, 1.25)
    later = format_row(7, 4, point(4, 0.7), settled, 9.5)
    assert first != later
    assert without_time(first) == without_time(later)
    alone = format_row(7, 4, point(4, 0.7), None, 1.25)
    assert without_time(alone) != without_time(first)
    assert point_part(alone) == point_part(first)  # which no memory decides
    assert point_part(format_row(7, 4, point(4, 0.6), settled, 1.25)) != point_part(first)
    for broken in (first.rstrip("\n") + "\tmore\n", first.rpartition("\t")[0], ""):
        assert without_time(broken) != without_time(first)
