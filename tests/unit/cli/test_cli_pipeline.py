"""What the pipeline verbs read on this machine, and how they show a look at the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.cli.pipelines.apply import read_documents, read_table
from harch.cli.pipelines.top import COLUMNS, notes_of, rows_of
from harch.sdk.pipeline_types import Pipeline, PipelineStage

FILE = """\
# two of them
kind: pipeline
name: one
sense: {enrichment: {table: fields, columns: [area]}}
think:
  models:
    - versions: [{version: "1", path: models/m.onnx}, {version: "2", callable: "shop.models:score"}]
---
kind: pipeline
name: two
"""


def test_a_file_is_split_and_its_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    one, two = read_documents(path)
    assert (one.name, one.table, one.files) == ("one", "fields", ("models/m.onnx", "shop/models.py"))
    assert (two.name, two.files) == ("two", ())
    assert two.text.splitlines().index("name: two") == FILE.splitlines().index("name: two")


@pytest.mark.parametrize("content", ["", "# nothing\n---\n", "\n\n"])
def test_a_file_without_a_pipeline_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(HarchError) as refused:
        read_documents(path)
    assert refused.value.code == "E0250"


def test_tables_are_numbers_by_device(tmp_path: Path) -> None:
    path = tmp_path / "fields.csv"
    path.write_text("field,area,slope\nnorth,12.5,3\nsouth,7,0\n")
    assert read_table(path) == {"north": {"area": 12.5, "slope": 3.0}, "south": {"area": 7.0, "slope": 0.0}}
    path.write_text("field,area\nnorth,wide\n")
    with pytest.raises(HarchError) as refused:
        read_table(path)
    assert refused.value.code == "E0202"


def test_a_look_has_a_row_per_stage_and_says_what_is_wrong_below() -> None:
    stages = (
        PipelineStage(stage="source", workers=1, wanted=1, ready=1, counters={"events_accepted": 1234}),
        PipelineStage(stage="think", workers=2, wanted=2, ready=1, fixed=True, waiting=7, p50_ms=1.5, p99_ms=9.0),
    )
    pipeline = Pipeline(
        name="fields", hub="dakhla", version=3, state="trouble", trouble="think-1: loads", stages=stages
    )
    rows = rows_of([pipeline])
    assert [len(row) for row in rows] == [len(COLUMNS)] * 2
    assert (rows[0][0], rows[0][4], rows[1][0], rows[1][2], rows[1][6]) == ("fields", "1,234", "", "1/2*", "7")
    (words, star) = notes_of([pipeline])
    assert "trouble: think-1: loads" in words
    assert "auto" in star
