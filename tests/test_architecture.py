"""The rules of the source tree: who may import whom, how large files and functions get, what is public.

Reads the source with `ast`; imports nothing of it. The levels are those of the design: a module imports only modules
of lower levels, or of its own folder.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pelton"

LEVELS = {
    "core": 0,
    "text": 1,
    "scheduling": 1,
    "compute": 1,
    "quant": 2,
    "sampling": 2,
    "structure": 2,
    "models": 3,
    "loading": 4,
    "execution": 5,
    "engine": 6,
    "insight": 6,
    "server": 7,
    "web": 7,
    "cli": 8,
}

# These may import the native module. Models, the scheduler, text and the engine must work without it (the NumPy
# reference, scripted runners in tests); of the command line, only `doctor` asks what it was built for.
NATIVE_USERS = {"compute", "quant", "sampling", "loading", "execution", "insight", "cli"}

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 80

# "path" or "path:function" -> why it may be larger. Empty is how it should stay.
SIZE_ALLOW_LIST: dict[str, str] = {}

PUBLIC_NAMES = {
    "LLM",
    "AsyncEngine",
    "Choice",
    "EngineConfig",
    "GenerationResult",
    "PeltonError",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Structure",
    "__version__",
    "errors",
}

MODULES = sorted(SOURCE.rglob("*.py"))
PYTHON_FILES = sorted(p for folder in ("src", "tests", "bench", "docs") for p in (ROOT / folder).rglob("*.py"))


def get_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def get_folder(path: Path) -> str | None:
    """The folder of `src/pelton` a module lies in; None for the package's own files."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def list_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import in a file, those inside functions too."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{get_name(path)}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            if node.module == "pelton":
                yield from ((node.lineno, f"pelton.{alias.name}") for alias in node.names)


def list_functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_module_imports_only_lower_levels_or_its_own_folder(path: Path) -> None:
    folder = get_folder(path)
    for line, module in list_imports(path):
        parts = module.split(".")
        if parts[0] != "pelton" or len(parts) < 2 or parts[1] not in LEVELS:
            continue
        if folder is None or parts[1] == folder:
            continue  # the package's own files only re-export
        is_lower = LEVELS[parts[1]] < LEVELS[folder]
        assert is_lower, f"{get_name(path)}:{line}: {folder} (level {LEVELS[folder]}) imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_folder_of_a_module_has_a_level(path: Path) -> None:
    folder = get_folder(path)
    assert folder is None or folder in LEVELS


@pytest.mark.parametrize("path", sorted((SOURCE / "core").glob("*.py")), ids=get_name)
def test_core_imports_the_standard_library_only(path: Path) -> None:
    for line, module in list_imports(path):
        first = module.split(".")[0]
        assert first == "pelton" or first in sys.stdlib_module_names, f"{get_name(path)}:{line}: imports {module}"


def test_scheduling_imports_nothing_but_core() -> None:
    for path in (SOURCE / "scheduling").glob("*.py"):
        outside = [m for _, m in list_imports(path) if m.split(".")[0] in ("numpy", "tokenizers", "jinja2")]
        assert outside == [], get_name(path)


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_native_module_is_imported_where_weights_and_steps_are_handled_only(path: Path) -> None:
    if get_folder(path) in NATIVE_USERS:
        return
    assert [line for line, module in list_imports(path) if module.startswith("pelton._native")] == []


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_environment_is_read_in_core_config_only(path: Path) -> None:
    if path == SOURCE / "core" / "config.py":
        return
    for node in ast.walk(parse(path)):
        is_read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
        assert not is_read, f"{get_name(path)}:{node.lineno}: reads the environment"


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_module_has_a_docstring(path: Path) -> None:
    if path.name == "__init__.py" and get_folder(path) is not None and not path.read_text().strip():
        pytest.fail(f"{get_name(path)} is empty; say in one sentence what the folder is for")
    docstring = ast.get_docstring(parse(path))
    assert docstring, f"{get_name(path)} does not say what it is for"


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_public_functions_and_classes_have_docstrings(path: Path) -> None:
    undocumented = []
    for node in parse(path).body:
        is_definition = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if is_definition and not node.name.startswith("_") and not ast.get_docstring(node):
            undocumented.append(node.name)
    assert undocumented == [], get_name(path)


@pytest.mark.parametrize("path", PYTHON_FILES, ids=get_name)
def test_files_and_functions_stay_small(path: Path) -> None:
    name = get_name(path)
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE_LINES or name in SIZE_ALLOW_LIST, f"{name} has {num_lines} lines"
    for function, node in list_functions(path):
        num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
        place = f"{name}:{function}"
        assert num_lines <= MAX_FUNCTION_LINES or place in SIZE_ALLOW_LIST, f"{place} has {num_lines} lines"


def test_allow_list_has_only_what_exists_and_is_too_large() -> None:
    for place, reason in SIZE_ALLOW_LIST.items():
        path, _, function = place.partition(":")
        assert (ROOT / path).is_file(), f"{place} is allowed to be large, but does not exist"
        assert reason
        if function:
            assert function in dict(list_functions(ROOT / path))


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_no_bare_except_and_no_global(path: Path) -> None:
    for node in ast.walk(parse(path)):
        is_bare = isinstance(node, ast.ExceptHandler) and node.type is None
        assert not is_bare, f"{get_name(path)}:{node.lineno}: bare except"
        assert not isinstance(node, ast.Global), f"{get_name(path)}:{node.lineno}: global"


@pytest.mark.parametrize("path", MODULES, ids=get_name)
def test_any_and_silenced_checks_have_a_reason_on_their_line(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for mark in ("# type: ignore", "# noqa"):
            if mark in line:
                reason = line.split(mark, 1)[1].partition("#")[2].strip()
                assert reason, f"{get_name(path)}:{number}: {mark} without a reason"


def test_public_surface_is_what_the_package_lists() -> None:
    for node in parse(SOURCE / "__init__.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            assert set(ast.literal_eval(node.value)) == PUBLIC_NAMES
            return
    pytest.fail("pelton/__init__.py has no __all__")


def test_modules_are_named_once_per_test_file() -> None:
    """pytest imports test files by their base name, so two of one name would hide each other."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
