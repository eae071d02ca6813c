"""Seeds for the fuzz targets `program` and `archive`: the exported fixtures of one operator each, small ones that reach every rule of capture.

Usage: seeds.py FIXTURES TARGET FOLDER      (FIXTURES: build/fixtures/operators)
"""
import sys
import zipfile
from pathlib import Path

LEFT_OUT = ("sample_inputs", "serialization_id")        # entries that nothing reads


def main(fixtures, target, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(fixtures.glob("*.pt2")):
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist() if not any(part in name for part in LEFT_OUT)}
        if target == "program":
            (folder / path.stem).write_bytes(next(content for name, content in entries.items() if name.endswith("models/model.json")))
            continue
        with zipfile.ZipFile(folder / path.stem, "w", zipfile.ZIP_STORED) as archive:
            for name, content in entries.items():
                archive.writestr(zipfile.ZipInfo(name), content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
