"""How pip builds the wheel: scikit-build-core's build, with a compiler of GPU code from PyPI (scripts/nvcc.txt) where scripts/nvcc.sh finds none, in the environment that pip
makes for the build. A wheel without GPU code, as -C cmake.define.DEEPWELL_NVCC= asks, has the local version cpu: 0.1.0+cpu. It needs no torch."""
import os
import re
import subprocess
import sys
from pathlib import Path

import scikit_build_core.build as build
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent


def defined(name, settings):
    """What a define of CMake was set to, by pip's -C or by an environment variable; None: it was not."""
    for key in (f"cmake.define.{name}", f"skbuild.cmake.define.{name}"):
        if key in (settings or {}):
            return settings[key]
    given = " ".join(os.environ.get(variable, "") for variable in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS"))
    found = re.findall(rf"-D\s*{name}(?::\w+)?=(\S*)", given)
    found += re.findall(rf"(?:^|;){name}=([^;]*)", os.environ.get("SKBUILD_CMAKE_DEFINE", ""))
    return found[-1] if found else None


def for_cpus_alone(settings):
    return defined("DEEPWELL_NVCC", settings) == ""


def lacks_nvcc(settings):
    if defined("DEEPWELL_NVCC", settings) is not None or defined("DEEPWELL_FATBINS", settings):
        return False
    return subprocess.run(["sh", ROOT / "scripts" / "nvcc.sh", "find"], stdout=subprocess.DEVNULL).returncode != 0


def pypi_nvcc():
    """The compiler that scripts/nvcc.txt brought into this environment; None where it is not, as without build isolation."""
    for folder in sys.path:
        nvcc = Path(folder) / "nvidia" / "cu13" / "bin" / "nvcc"
        if nvcc.is_file():
            return str(nvcc)
    return None


def prepared(settings):
    """The settings of the build, with the compiler; and the variable by which pyproject.toml chooses the version."""
    if for_cpus_alone(settings):
        os.environ["DEEPWELL_WHEEL_FOR_CPUS"] = "1"
    else:
        os.environ.pop("DEEPWELL_WHEEL_FOR_CPUS", None)
    nvcc = pypi_nvcc() if lacks_nvcc(settings) else None
    return {**(settings or {}), "cmake.define.DEEPWELL_NVCC": nvcc} if nvcc else settings


def required(needed, settings):
    if not lacks_nvcc(settings):
        return needed
    lines = (ROOT / "scripts" / "nvcc.txt").read_text().splitlines()
    return needed + [line for line in lines if line and not line.startswith("#")]


def get_requires_for_build_wheel(config_settings=None):
    return required(build.get_requires_for_build_wheel(config_settings), config_settings)


def get_requires_for_build_editable(config_settings=None):
    return required(build.get_requires_for_build_editable(config_settings), config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return build.prepare_metadata_for_build_wheel(metadata_directory, prepared(config_settings))


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    return build.prepare_metadata_for_build_editable(metadata_directory, prepared(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return build.build_wheel(wheel_directory, prepared(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return build.build_editable(wheel_directory, prepared(config_settings), metadata_directory)
