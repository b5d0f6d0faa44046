"""The layers of the house: arrows point downwards, heavy things load late, and only where they belong."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pyarrow.ipc
import pytest

import normgrowth
from normgrowth.cli.main import COMMANDS
from normgrowth.results import KINDS, type_of

SOURCE = Path(normgrowth.__file__).parent

# Each layer may import those after it, and itself; report reads records and nothing else.
BASE = {
    "records",
    "results",
    "serialization",
    "schedules",
    "engine",
    "errors",
    "text",
    "workspace",
    "measurements",
}
ENGINES = {"checkpoints", "moments"} | BASE
VERBS = {"trace", "lint", "compare", "fit", "dynamics", "limit", "network", "tracking", "lab"}
ALLOWED = {
    "cli": {"paper", "report"} | VERBS | ENGINES,
    "paper": {"report"} | VERBS | ENGINES,
    # Renderers know the result types of the verbs, and nothing that measures.
    "report": {
        "records",
        "results",
        "serialization",
        "errors",
        "text",
        "workspace",
        "checkpoints",
        "measurements",
    }
    | VERBS,
    "lab": {"tracking", "network", "limit", "trace", "dynamics"} | ENGINES,
    "tracking": {"network", "limit", "trace", "dynamics"} | ENGINES,
    "network": {"limit", "trace", "lint"} | ENGINES,
    "trace": ENGINES,
    "lint": {"trace"} | ENGINES,
    "compare": {"trace"} | ENGINES,
    "fit": ENGINES,
    "dynamics": {"fit"} | ENGINES,
    "limit": {"results", "records", "errors", "text", "workspace"},
    "checkpoints": {"engine", "errors", "text", "records", "results", "serialization"},
    "moments": {"errors"},
    "results": {"records", "serialization", "errors", "text", "workspace"},
    "records": {"serialization", "errors", "text", "workspace"},
    "serialization": {"errors", "text"},
    "workspace": {"errors", "serialization"},
    "text": set(),
    "schedules": {"errors"},
    "measurements": {"records", "results", "checkpoints", "errors", "schedules"},
    "engine": {"errors"},
    "errors": {"text"},
}
# Modules that belong to another layer: light modules of verbs to that of what they call.
OWNERS = {
    "parameters.py": "trace",
    "trace/__init__.py": "lint",
    **dict.fromkeys(("degrees.py", "saturation.py", "heads.py", "scaling.py", "behavior.py"), "network"),
    **dict.fromkeys(("train.py", "sweep.py"), "lab"),
    "reproduce.py": "paper",
    "stored_result.py": "records",  # the table, and its files
}
EXCEPTION = ("results.py", "normgrowth.report.renderers")  # a result asks the report to show it
# Heavy dependencies with an extra of their own: one file each, inside the function that needs them.
HOME = {
    "ray": "engine/ray_cluster.py",
    "pebble": "engine/processes.py",
    "lightning": "tracking/integrations/lightning.py",
    "boto3": "checkpoints/remote/buckets/bucket_access.py",
}
# ... and in two: the bucket, and how it is reached.
HOMES = {
    "obstore": {"checkpoints/remote/buckets/object_store.py", "checkpoints/remote/buckets/bucket_access.py"}
}
# Never at the top of a file: `import normgrowth.anything` must stay light.
LATE = {
    "torch",
    "transformers",
    "pandas",
    "pyarrow",
    "matplotlib",
    "rich",
    "huggingface_hub",
    "filelock",
    *HOME,
    *HOMES,
}
# ... except where a file is about nothing else: layers of a network are torch modules.
NEEDS = {
    **{name: {"torch"} for name in ("network", "limit", "tracking", "lab", "paper/stages")},
    # A callback is a subclass of the library's own.
    "tracking/integrations": {"torch", "transformers", "lightning"},
}
MODULES = sorted(SOURCE.rglob("*.py"))


def layer(path: Path) -> str:
    inside = path.relative_to(SOURCE)
    return OWNERS.get(inside.as_posix(), inside.parts[0].removesuffix(".py"))


def layer_of(module: str) -> str:
    """The layer of an imported name, such as "normgrowth.trace.plan.Plan"."""
    first = module.split(".")[1]
    return OWNERS.get(f"{first}.py", first)


def imports(path: Path) -> list[tuple[str, bool]]:
    """Imported modules, and whether that happens when the file is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, at_top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, at_top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative imports hide the layer"
                found.extend((f"{child.module}.{alias.name}", at_top) for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                visit(child, False)
            else:
                visit(
                    child,
                    at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
                )

    visit(tree, True)
    return found


TYPES = {place.split(":")[0] for place in KINDS.values()}  # modules of the types of results


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_point_downwards(path):
    own = layer(path)
    if own in ("__init__", "__main__"):
        return
    for name, _ in imports(path):
        module = name.rpartition(".")[0]
        if not name.startswith("normgrowth.") or (own == "report" and module in TYPES):
            continue
        target = layer_of(name)
        allowed = target in ALLOWED[own] | {own} or (path.name, module) == EXCEPTION
        assert allowed, f"{path.name} imports {name}: {own} does not know {target}"


def test_layers_have_no_cycle():
    order = list(TopologicalSorter(ALLOWED).static_order())  # raises CycleError
    places = [order.index(name) for name in ("cli", "paper", "report", "trace", "checkpoints", "records")]
    assert places == sorted(places, reverse=True)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_heavy_dependencies_load_late_and_in_one_place(path):
    for name, at_top in imports(path):
        package = name.split(".")[0]
        own = path.relative_to(SOURCE).as_posix()
        late = LATE.difference(*(needed for place, needed in NEEDS.items() if own.startswith(f"{place}/")))
        assert not (at_top and package in late), f"{path.name} imports {package} when it is loaded"
        if package in HOME:
            assert path == SOURCE / HOME[package], f"{package} belongs into {HOME[package]}"
        assert own in HOMES.get(package, {own}), f"{package} belongs into {HOMES[package]}"


# A file per verb, per kind of result or per library: one name, one meaning.
SHARED_MODULES = {"result", "moments", "budget", "watch"} | {*KINDS, *COMMANDS}
SHARED_CLASSES = {"NormCallback"}


def test_no_module_or_class_has_two_meanings():
    modules, classes = Counter[str](), Counter[str]()
    for path in MODULES:
        name = path.parent.name if path.stem == "__init__" else path.stem
        modules[name] += name != SOURCE.name and name != "__main__"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes.update(
            node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
        )
    assert {name for name, count in modules.items() if count > 1} <= SHARED_MODULES
    assert {name for name, count in classes.items() if count > 1} <= SHARED_CLASSES


def test_a_public_function_shares_its_name_with_no_other():
    """Commands and files per kind of result are declarations of the verb."""
    public = {name for name in normgrowth.__all__ if name[0].islower()}
    defined = Counter[str]()
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined.update(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    assert {name: defined[name] for name in public} == dict.fromkeys(public, 1)


VERBS_RETURN = {
    "parameters": "Parameters",
    "trace": "Trace",
    "lint": "Findings",
    "compare": "Comparison",
    "fit": "Fits",
    "dynamics": "Dynamics",
    "degrees": "Degrees",
    "saturation": "Saturation",
    "heads": "Heads",
    "behavior": "Behavior",
    "scaling": "Scaling",
    "train": "Run",
    "sweep": "Sweep",
    "reproduce": "Reproduction",
    "report": "Page",
}


@pytest.mark.parametrize("verb", VERBS_RETURN)
def test_a_verb_is_one_function_one_type_one_command_and_one_page(verb):
    function = getattr(importlib.import_module(f"normgrowth.{verb}"), verb)
    assert getattr(normgrowth, verb) is function
    assert inspect.signature(function).return_annotation == VERBS_RETURN[verb]
    assert VERBS_RETURN[verb] in normgrowth.__all__
    assert (SOURCE / "cli" / f"{verb}.py").is_file()
    assert (SOURCE.parents[1] / "docs" / f"{verb}.md").is_file()


def test_every_command_and_every_kind_of_result_has_its_verb():
    assert set(COMMANDS) == {*VERBS_RETURN, "plot", "watch"}  # these two show what verbs returned
    assert {type_of(kind).__name__ for kind in KINDS} == {*VERBS_RETURN.values()} - {"Page"}


def test_importing_verbs_is_light_and_hides_no_function():
    code = "\n".join(f"from normgrowth.{verb} import {verb}" for verb in VERBS_RETURN)
    code += "\nimport normgrowth as ng, types"
    code += f"\nassert not any(isinstance(getattr(ng, v), types.ModuleType) for v in {list(VERBS_RETURN)})"
    assert not loaded_after(code) & {"numpy", "torch", "transformers", "pandas", "pyarrow", "matplotlib"}


def test_the_guide_names_files_and_folders_that_exist():
    root = SOURCE.parents[1]
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tracked = [*MODULES, *(root / "tests").rglob("*.py"), *root.glob("*.py")]
    paths = {path.as_posix() for path in tracked}
    files = set(re.findall(r"[\w/]+\.py\b", text))
    assert len(files) > 40
    named = {
        name for name in files if not set(name) & set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    }  # KIND.py is a pattern
    assert not {name for name in named if not any(path.endswith(f"/{name}") for path in paths)}
    tree = re.findall(r"\b([a-z_]+)/ ", text)
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"} <= set(tree)


def test_packages_have_about_ten_modules():
    """The verbs and commands, and the report's files per kind of result, may be more."""
    modules = [path for path in MODULES if path.stem[0] != "_" and path.stem not in COMMANDS]
    sizes = Counter(path.parent.relative_to(SOURCE).as_posix() for path in modules)
    many = {place for place, size in sizes.items() if size > 10}
    assert many <= {
        f"report/{part}" for part in ("columns", "terminal", "figures", "sentences", "page/sections")
    }


def loaded_after(code: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in result.stdout.splitlines()[-1].split()}


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"torch", "transformers", "pandas", "pyarrow", "matplotlib", "numba", "rich", "numpy", "obstore"}
    assert not loaded_after("import normgrowth") & heavy
    late = loaded_after("import normgrowth; normgrowth.trace, normgrowth.open_source")
    assert not late & {"torch", "obstore", "huggingface_hub"}


def test_tracing_safetensors_needs_no_torch(tmp_path):
    from synthetic_series import walk, write_series

    write_series(tmp_path, walk(2))
    heavy = loaded_after(f"import normgrowth; normgrowth.trace({str(tmp_path)!r}).records.series('norm')")
    # Not pandas: pyarrow itself imports it, where it is installed, to make an array.
    assert not heavy & {"torch", "transformers", "tensorflow"}


def _batches(run: Path) -> list[pyarrow.RecordBatch]:
    """The measured steps in a tracker's log."""
    with pyarrow.ipc.open_stream(run / "steps" / "part-000.arrows") as stream:
        return list(stream)


def test_tracking_a_small_model_loads_nothing_heavy(tmp_path):
    """Memory of the training process: numba, pandas and pyarrow would take 30 to 100 MB."""
    before = "import torch; model = torch.nn.Linear(4, 4); optimizer = torch.optim.AdamW(model.parameters())"
    tracked = f"""{before}
from normgrowth import NormTracker
tracker = NormTracker(model, optimizer, every=1, include="all", out={str(tmp_path / "run")!r})
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
assert tracker.latest()["norm/model"] > 0"""
    added = loaded_after(tracked) - loaded_after(before)
    assert [len(batch) for batch in _batches(tmp_path / "run")] == [1, 1, 1, 1]  # steps 0 to 3
    assert not added & {
        "numba",
        "llvmlite",
        "pandas",
        "pyarrow",
        "matplotlib",
        "rich",
        "transformers",
        "scipy",
    }


def test_help_loads_nothing_heavy():
    heavy = loaded_after(
        "from normgrowth.cli.main import main\ntry:\n    main(['trace', '--help'])\nexcept SystemExit:\n    pass"
    )
    assert not heavy & {
        "torch",
        "transformers",
        "pandas",
        "pyarrow",
        "matplotlib",
        "numba",
        "rich",
        "obstore",
    }


def test_public_names_are_all_there():
    for name in normgrowth.__all__:
        assert getattr(normgrowth, name).__name__ == name
    assert set(normgrowth.__all__) <= set(dir(normgrowth))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = normgrowth.nothing


def test_the_checker_itself_can_say_no(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import torch\ndef f():\n    import ray\n    from normgrowth.cli import main\n")
    assert imports(bad) == [("torch", True), ("ray", False), ("normgrowth.cli.main", False)]
