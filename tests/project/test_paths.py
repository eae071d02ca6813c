"""Every path that a document names exists, and every folder of src/ is in ARCHITECTURE.md."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = ("build/", "dist/")   # by the build, not in the repository
FOREIGN = {"nvvm_wrapper.py"}   # files of others
FOLDERS = ["kernels", "python", "bench", "docs", "tests", "models"]
PAGES = [ROOT / page for page in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")] + [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")) if path.parent.parent.name != "results"]   # measurements name files of their day


def paths_in(text):
    """What stands in backquotes or in a link and looks like a path of this repository: it has a '/', or an extension of ours."""
    named = re.findall(r"`([^`\n]+)`", text) + re.findall(r"\]\(([^)#\s]+)\)", text)
    for name in named:
        name = name.strip().rstrip("/")
        if re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]*", name) is None or "://" in name:
            continue
        top = name.split("/")[0]
        if ("/" in name and (ROOT / top).exists()) or re.search(r"\.(md|def|py|sh|txt)$", name):
            yield name


def file_names():
    names = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ("build", "dist", ".git")]
        names.update(files)
    return names


NAMES = file_names()


def exists(name, folder=ROOT):
    """From the root, from the document's folder, or a program under bench/ by its source."""
    if name.startswith(MADE) or name in FOREIGN or any(path.exists() for path in (ROOT / name, folder / name, ROOT / f"{name}.c")):
        return True
    return "/" not in name and name in NAMES   # a file named without its folder


def main():
    assert list(paths_in("`src/base` `a b` `x.def` [page](docs/formats.md) `https://x/y.md`")) == ["src/base", "x.def", "docs/formats.md"]
    assert exists("src/base/base.h") and exists("base.h") and not exists("src/base/absent.h") and not exists("absent.def")
    faults = 0
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for name in paths_in(line):
                if not exists(name, page.parent):
                    print(f"{page.relative_to(ROOT)}:{number}: {name} does not exist")
                    faults += 1
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    for layer in sorted((ROOT / "src").iterdir()):
        if re.search(rf"\b{layer.name}\b", architecture) is None:
            print(f"ARCHITECTURE.md: does not name the layer {layer.name}")
            faults += 1
    return 1 if faults else 0


sys.exit(main())
