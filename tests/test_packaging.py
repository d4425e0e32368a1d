# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What a user installs: the wheel by itself, the editable install, the lazy top-level import, the version ranges."""

import configparser
import json
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trl_agentpo


REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = {"trl_agentpo": REPOSITORY / "trl_agentpo", "trl_agentpo/envs": REPOSITORY / "envs"}
NOT_INSTALLED = ("tests", "examples", "benchmarks", "docs")
NEEDED_TO_PLAY = ("gymnasium", "numpy", "cloudpickle", "typing_extensions", "farama-notifications")

PLAY = """
import json, sys
import gymnasium
import trl_agentpo, trl_agentpo.envs

environment = trl_agentpo.make("trl_agentpo/FrozenLake-v0")
environment.action_space.seed(0)
texts, over = [environment.reset(seed=0)[0]], False
while not over:
    text, reward, terminated, truncated, info = environment.step(environment.action_space.sample())
    texts.append(text)
    over = terminated or truncated
sokoban = gymnasium.make("trl_agentpo.envs:trl_agentpo/Sokoban-v0").reset(seed=0)[0]
print(json.dumps({"texts": texts, "sokoban": sokoban, "files": [trl_agentpo.__file__, trl_agentpo.envs.__file__],
                  "torch": "torch" in sys.modules}))
"""


def run(*command, **kwargs):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **kwargs)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def shipped_files():
    """Every file of the package on disk, by its path in the wheel."""
    return {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in SOURCES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def requirements(extra=None):
    """The requirements in setup.cfg: of the package, or of one of its extras with the extras it refers to."""
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg")
    lines = parser["options"]["install_requires"] if extra is None else parser["options.extras_require"][extra]
    for requirement in map(Requirement, filter(None, lines.splitlines())):
        if requirement.name == "trl-agentpo":
            for other in requirement.extras:
                yield from requirements(other)
        else:
            yield requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # A copy is built, so that neither a stale build/ gets into the wheel nor a new one into the repository.
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "outputs", "*-output")
    shutil.copytree(REPOSITORY, source, ignore=ignored, dirs_exist_ok=True)
    # Without options, build makes the source distribution and then the wheel from it: both are complete or this fails.
    run(sys.executable, "-m", "build", "--no-isolation", source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a fresh environment with the wheel and, of this one's packages, what playing needs and no more."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    (site_packages,) = environment.glob("lib/python*/site-packages")
    for name in NEEDED_TO_PLAY:
        distribution = metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}:
            (site_packages / top).symlink_to(distribution.locate_file(top))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped_files()
    assert "trl_agentpo/py.typed" in names


def test_every_package_folder_is_declared():
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg")
    declared = {name.replace(".", "/") for name in parser["options"]["packages"].split()}
    assert declared == {name.rpartition("/")[0] for name in shipped_files() if name.endswith("/__init__.py")}


def test_the_wheel_names_its_version_licence_and_readme(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = archive.read(name).decode()
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert f"\nVersion: {trl_agentpo.__version__}\n" in about
    assert "\nLicense: Apache-2.0\n" in about
    assert (REPOSITORY / "README.md").read_text().splitlines()[0] in about
    assert len(licences) == 1


def test_an_episode_can_be_played_from_the_installed_wheel_alone(installed, tmp_path):
    played = json.loads(run(installed, "-c", PLAY, cwd=tmp_path))
    assert len(played["texts"]) > 1 and all(played["texts"])
    assert played["sokoban"]
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in played["files"])
    assert not played["torch"]


@pytest.mark.parametrize("name", ["envs", *NOT_INSTALLED])
def test_the_wheel_installs_no_other_top_level_name(installed, tmp_path, name):
    found = run(installed, "-c", f"import importlib.util as u; print(u.find_spec({name!r}))", cwd=tmp_path)
    assert found.strip() == "None"


def test_the_editable_install_imports_the_repository_from_any_folder(tmp_path):
    script = "import trl_agentpo, trl_agentpo.envs as e; print(trl_agentpo.__file__); print(e.__file__)"
    library, environments = run(sys.executable, "-c", script, cwd=tmp_path).splitlines()
    assert Path(library).samefile(REPOSITORY / "trl_agentpo" / "__init__.py")
    assert Path(environments).samefile(REPOSITORY / "envs" / "__init__.py")


def test_the_import_is_lazy_and_quick(tmp_path):
    script = (
        "import sys, time; start = time.perf_counter(); import trl_agentpo; took = time.perf_counter() - start; "
        "print(took, *({'torch', 'trl', 'transformers', 'gymnasium', 'numpy', 'datasets'} & set(sys.modules)))"
    )
    outputs = [run(sys.executable, "-c", script, cwd=tmp_path).split() for _ in range(3)]
    assert [loaded for _, *loaded in outputs] == [[], [], []]
    assert min(float(took) for took, *_ in outputs) < 1.0


def test_every_public_name_resolves():
    assert sorted(trl_agentpo.__all__) == sorted([*trl_agentpo._MODULE_OF, "__version__"])
    assert set(trl_agentpo.__all__) <= set(dir(trl_agentpo))
    for name, module in trl_agentpo._MODULE_OF.items():
        value = getattr(trl_agentpo, name)
        assert value.__name__ == name
        assert value.__module__ == f"trl_agentpo{module}"
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        trl_agentpo.Nonsense  # noqa: B018


def test_type_checkers_see_every_public_name_where_it_is_defined():
    source = (REPOSITORY / "trl_agentpo" / "__init__.py").read_text()
    _, _, static = source.partition("if TYPE_CHECKING:\n")
    imports = [line.strip().split(" import ") for line in static.splitlines() if line.startswith("    from .")]
    assert {name: module.removeprefix("from ") for module, names in imports for name in names.split(", ")} == (
        trl_agentpo._MODULE_OF
    )


def test_the_tested_versions_lie_in_the_declared_ranges():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    tested = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    for requirement in [*requirements(), *requirements("dev")]:
        version = tested[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is tested with {version}"
