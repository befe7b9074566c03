"""May an aggregate be looser than its data? With a statement of an authority for exactly that, and not otherwise."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs

from harch.base.errors import HarchError
from harch.cli.verbs.pipeline import sign_export
from harch.pipelines.spec.release import as_object, export_tag, released_exports
from harch.pipelines.spec.settings import PipelineSpec
from harch.sovereignty.declassification import Declassification, sign
from unit.pipelines.spec.pipeline_files import JURISDICTIONS, irrigation, proved

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
KEY = Ed25519PrivateKey.generate()
AUTHORITIES = {"cndp": KEY.public_key().public_bytes_raw()}


def statement(spec: PipelineSpec, **changed: Any) -> dict[str, Any]:
    (export,) = spec.exports
    target = as_object(spec, export, JURISDICTIONS)
    assert target.tag is not None
    fields: dict[str, Any] = {
        "object_id": target.id,
        "tag_revision": target.tag_revision,
        "old": target.tag,
        "new": export_tag(spec, export, JURISDICTIONS),
        "reason": "a mean of a month names nobody",
        "authority": "cndp",
        "issued_at": NOW,
        "valid_until": NOW + timedelta(hours=1),
    }
    signed = sign(Declassification(**(fields | changed)), KEY.private_bytes_raw())
    found: dict[str, Any] = msgspec.to_builtins(signed)
    return found


def with_statement(spec: PipelineSpec, said: dict[str, Any] | None) -> PipelineSpec:
    (export,) = spec.exports
    return structs.replace(spec, exports=(structs.replace(export, declassification=said),))


def released(spec: PipelineSpec, now: datetime = NOW, **more: Any) -> tuple[str, ...]:
    return released_exports(spec, JURISDICTIONS, AUTHORITIES, now=now, **more)


def test_a_signed_statement_lets_the_aggregate_leave_and_without_one_the_proof_refuses() -> None:
    plain = irrigation()
    assert released(plain) == ()
    refused = proved(plain, declassified=released(plain))
    assert "declassification" in {one.rule for one in refused.rejections}
    spec = with_statement(plain, statement(plain))
    assert released(spec) == ("water-used",)
    proof = proved(spec, declassified=released(spec))
    assert proof.holds
    assert [(one.name, one.released) for one in proof.exports] == [("water-used", True)]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"object_id": "export:souss-irrigation:other"}, "subject"),
        ({"authority": "nobody"}, "authority"),
        ({"valid_until": NOW - timedelta(seconds=1)}, "validity"),
        ({"reason": " "}, "reason"),
    ],
)
def test_a_statement_about_something_else_holds_for_nothing(changed: dict[str, Any], why: str) -> None:
    spec = with_statement(irrigation(), statement(irrigation(), **changed))
    with pytest.raises(HarchError, match=why) as refused:
        released(spec)
    assert refused.value.code == "E0909"


def test_an_altered_statement_or_none_at_all_is_refused() -> None:
    said = statement(irrigation())
    for wrong in (said | {"reason": "another"}, {"object_id": "x"}):
        with pytest.raises(HarchError) as refused:
            released(with_statement(irrigation(), wrong))
        assert refused.value.code == "E0909"


def test_what_was_released_stays_so_while_nothing_of_it_changes() -> None:
    spec = with_statement(irrigation(), statement(irrigation()))
    later = NOW + timedelta(days=30)
    with pytest.raises(HarchError, match="validity"):
        released(spec, later)
    assert released(spec, later, before=(spec, ("water-used",))) == ("water-used",)
    (export,) = spec.exports
    wider = structs.replace(spec, exports=(structs.replace(export, to=("SN", "CI")),))
    with pytest.raises(HarchError, match="validity"):
        released(wider, later, before=(spec, ("water-used",)))


def test_what_the_command_prints_holds_in_the_file(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "pipelines" / "spec.md"
    text = page.read_text().split("```yaml\n", 1)[1].split("```", 1)[0]
    data = yaml.safe_load(text)
    data["exports"][0].pop("declassification", None)
    file, key = tmp_path / "farm.yaml", tmp_path / "cndp.key"
    file.write_text(yaml.safe_dump(data))
    key.write_text(KEY.private_bytes_raw().hex())
    key.chmod(0o600)
    words = [str(file), "--export", "water-used", "--authority", "cndp", "--key-file", str(key), "--reason", "monthly"]
    done = CliRunner().invoke(sign_export, [*words, "--json"])
    assert done.exit_code == 0, done.output
    data["exports"][0]["declassification"] = json.loads(done.output)
    spec = msgspec.convert({name: value for name, value in data.items() if name != "kind"}, PipelineSpec)
    at = datetime.fromisoformat(data["exports"][0]["declassification"]["issued_at"])
    assert released(spec, at) == ("water-used",)
    assert KEY.private_bytes_raw().hex() not in done.output
    assert CliRunner().invoke(sign_export, [*words[:2], "no-such", *words[3:]]).exit_code != 0
