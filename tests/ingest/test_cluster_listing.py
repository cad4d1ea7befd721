"""The folder in which several machines list a bucket: that of a killed process is deleted, those of others are not."""

from pathlib import Path

from mpload.ingest.cluster_listing import _shared_folder


def test_only_folders_that_killed_processes_left_are_deleted(tmp_path: Path) -> None:
    for name in ("left", "begun"):
        (tmp_path / f".mpload-parts.{name}").mkdir()
    (tmp_path / ".mpload-parts.left" / "lock").touch()
    (tmp_path / ".mpload-parts.left" / "part-000").touch()
    with _shared_folder(tmp_path) as own, _shared_folder(tmp_path) as other:
        assert set(tmp_path.iterdir()) == {own, other, tmp_path / ".mpload-parts.begun"}
    assert list(tmp_path.iterdir()) == [tmp_path / ".mpload-parts.begun"]
