"""What is published: a source distribution and a wheel that hold what they should, and work where nothing else is."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HERE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"trajstitch-{HERE['version']}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, the wheel built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"{NAME}.dist-info/")}
        entry_points = archive.read(f"{NAME}.dist-info/entry_points.txt").decode()
        metadata = archive.read(f"{NAME}.dist-info/METADATA").decode()
    package = ROOT / "src" / "trajstitch"
    kept = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in kept}
    assert "trajstitch/report/assets/echarts.common.min.js" in names
    assert "trajstitch = trajstitch.cli:main" in entry_points
    assert f"Requires-Python: {HERE['requires-python']}" in metadata


def test_the_source_distribution_can_be_tested(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    for needed in ("Makefile", "LICENSE", "requirements.lock", "SECURITY.md", "src/trajstitch/cli/__init__.py"):
        assert needed in names
    assert {f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")} <= names
    assert not [name for name in names if name.endswith((".npz", ".hdf5", ".parquet"))]


def test_an_installed_wheel_runs_where_the_sources_are_not(built: Path, tmp_path: Path) -> None:
    """In an environment of its own, which sees this one's dependencies but not its trajstitch."""
    venv.create(tmp_path / "clean", with_pip=True)
    folder = tmp_path / "clean" / "bin"
    (wheel,) = built.glob("*.whl")
    install = [str(folder / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # On this path the file that leads to the sources is not read.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "JAX_PLATFORMS": "cpu"}

    def printed(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = printed(str(folder / "python"), "-c", "import trajstitch; print(trajstitch.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert "stitch" in printed(str(folder / "trajstitch"), "--help")


def test_the_lock_file_pins_every_dependency_by_its_hashes() -> None:
    """And names no host that it was made with."""
    text = (ROOT / "requirements.lock").read_text()
    assert len(text) < 2**20
    assert "http" not in text.replace("httpx", "").replace("httpcore", "")
    pins = [line for line in text.splitlines() if "==" in line and not line.startswith(" ")]
    assert all("==" in line.split(";")[0] and line.endswith("\\") for line in pins)
    assert text.count("--hash=sha256:") > len(pins)
    locked = {line.split("==")[0].lower() for line in pins}
    extras = HERE["optional-dependencies"]
    wanted = [*HERE["dependencies"], *extras["dev"], *extras["mujoco"]]
    names = {name.split("[")[0].split(">")[0].strip().lower() for name in wanted}
    assert names - locked == {"trajstitch"}
