"""What a study that is given up leaves behind."""

from pathlib import Path

import pytest

from tests.tuning.test_study import plan
from torchrank.record import alone_in
from torchrank.tuning import studies
from torchrank.tuning.jobs import FAILED, Outcome
from torchrank.tuning.study import Study

pytest.importorskip("optuna")


@pytest.fixture
def failing(monkeypatch):
    def run(sources, workers):
        while (job := sources[0].next_job()) is not None:
            Path(job.folder).mkdir(parents=True)
            (Path(job.folder) / "train.log").touch()
            sources[0].finish(job, Outcome(FAILED, reason="data not found"))

    monkeypatch.setattr(studies, "run_studies", run)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.usefixtures("failing")
def test_only_what_it_has_written_is_removed(tmp_path):
    mine = tmp_path / "there" / "trials" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    before = files(tmp_path)
    for name in ("there", "new"):
        with pytest.raises(ValueError, match=r"the study was given up after 3: data not found$"):
            studies.run_study(plan(tmp_path / name), 1, quiet=True)
        assert files(tmp_path) == before


@pytest.mark.usefixtures("failing")
def test_an_older_study_stays_and_the_message_names_its_folder(tmp_path):
    Study(plan(tmp_path)).close()
    with pytest.raises(ValueError, match=f"data not found .delete {tmp_path} to begin again.$"):
        studies.run_study(plan(tmp_path), 1, quiet=True)
    assert {"study.json", "study.db", "trials"} <= set(files(tmp_path))


def test_a_folder_in_which_another_study_runs_is_refused_with_the_right_option(tmp_path):
    with alone_in(tmp_path), pytest.raises(FileExistsError, match=r"or set folder=\.$"):
        studies.run_study(plan(tmp_path), 1, quiet=True)


@pytest.mark.parametrize(
    ("name", "content"), [("study.db", b"x" * 5000), ("study.json", b"{"), ("study.json", b"[]"), ("study.json", b"3")]
)
def test_a_damaged_study_is_one_line(name, content, tmp_path):
    Study(plan(tmp_path)).close()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read .*choose another folder=|holds another study") as error:
        Study(plan(tmp_path))
    assert "\n" not in str(error.value)
