"""Check the exact limit of every text architecture of transformers; write census.json and docs/architectures.md.

python benchmarks/census.py                         # everything: float64, both 16-bit types, autocast; resumes
python benchmarks/census.py --only llama,gpt2       # some architectures
python benchmarks/census.py --dtype float64         # some columns: float64, bfloat16, float16
python benchmarks/census.py --autocast              # the column of autocast
python benchmarks/census.py --again                 # measure recorded architectures again
python benchmarks/census.py --page                  # write the page from the records
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
from concurrent.futures import FIRST_COMPLETED, wait
from importlib.metadata import version
from pathlib import Path
from typing import Any

from census_page import page

from normgrowth.engine import available_cores, code_digest

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "census.json"
PAGE = ROOT / "docs" / "architectures.md"
SECONDS, BYTES = 300, 3 << 30  # of one architecture
COLUMNS = ("float64", "bfloat16", "float16", "autocast bfloat16")


def examine(task: tuple[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return the records of one text architecture in every setting, else nothing. Runs in its own process."""
    import warnings

    import torch
    import transformers
    from limit import census, text_models  # pyright: ignore[reportMissingImports]

    name, columns = task
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if text_models.model_class(name) is None:
        return []
    found = []
    for setting in text_models.SETTINGS:
        for column in columns:
            if column == "float64":
                found.append(census.examine(name, setting))
            elif setting in text_models.NARROW_SETTINGS:
                dtype = getattr(torch, column.removeprefix("autocast "))
                found.append(census.examine_narrow(name, setting, dtype, column.startswith("autocast")))
    return found


def read() -> dict[str, Any]:
    return (
        json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {"done": {}, "records": []}
    )


def write(result: dict[str, Any]) -> None:
    """Write one record per line; replace the file atomically."""
    result["records"].sort(
        key=lambda r: (r["architecture"], json.dumps(r["setting"]), COLUMNS.index(r["dtype"]))
    )
    head = {key: value for key, value in result.items() if key != "records"}
    lines = ",\n  ".join(json.dumps(record) for record in result["records"])
    text = json.dumps(head, sort_keys=True)[:-1] + f', "records": [\n  {lines}\n]}}\n'
    scratch = RECORDS.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(RECORDS)


def died(name: str, columns: tuple[str, ...], why: str) -> list[dict[str, Any]]:
    """Return the record of a crash."""
    return [
        {"architecture": name, "setting": {}, "dtype": column, "outcome": "crashed", "reason": why}
        for column in columns
    ]


def run(wanted: list[str], columns: tuple[str, ...], again: bool, workers: int) -> None:
    from pebble import ProcessPool

    code = f"{code_digest('limit')} transformers {version('transformers')} torch {version('torch')}"
    result: dict[str, Any] = read() | {"transformers": version("transformers"), "torch": version("torch")}
    done: dict[str, dict[str, str]] = result["done"]  # architecture -> column -> code that measured it
    other: dict[str, list[str]] = result.setdefault(
        "other", {}
    )  # version of transformers -> configs of models that do not read text
    known = set(other.get(version("transformers"), []))
    tasks = []
    for name in (name for name in wanted if again or name not in known):
        missing = tuple(c for c in columns if again or done.get(name, {}).get(c) != code)
        if missing:
            tasks.append((name, missing))
    context: Any = multiprocessing.get_context("forkserver")
    # Its server imports these once; it finds those of the tests by the environment, and skips what it does not find.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    context.set_forkserver_preload(["transformers.models.t5.modeling_t5", "limit.census"])
    with ProcessPool(workers, max_tasks=1, context=context) as pool:
        waiting: dict[Any, tuple[str, tuple[str, ...]]] = {
            pool.schedule(examine, args=(task,), timeout=SECONDS): task for task in tasks
        }
        count = 0
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                name, missing = waiting.pop(future)
                error = future.exception()
                why = f"took more than {SECONDS} s" if isinstance(error, TimeoutError) else repr(error)
                records = future.result() if error is None else died(name, missing, why)
                count += 1
                result["records"] = [
                    r for r in result["records"] if r["architecture"] != name or r["dtype"] not in missing
                ] + records
                known = known - {name} if records else known | {name}
                result["other"] = {version("transformers"): sorted(known)}
                if records:
                    done[name] = done.get(name, {}) | dict.fromkeys(missing, code)
                    outcomes = ", ".join(r["outcome"] for r in records)
                    print(f"{count} of {len(tasks)}: {name}: {outcomes}", flush=True)
                if count % 20 == 0:
                    write(result)
    write(result)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of configs, separated by commas")
    parser.add_argument(
        "--dtype", action="append", choices=COLUMNS[:3], help="only this column; several times"
    )
    parser.add_argument("--autocast", action="store_true", help="only this column, and those of --dtype")
    parser.add_argument("--again", action="store_true", help="measure again what is recorded for this code")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes [cores]")
    args = parser.parse_args()
    if not args.page:
        sys.path.insert(0, str(ROOT / "tests"))
        chosen = (*(args.dtype or ()), *([COLUMNS[3]] if args.autocast else []))
        from limit.text_models import candidates  # pyright: ignore[reportMissingImports]

        run(args.only.split(",") if args.only else candidates(), chosen or COLUMNS, args.again, args.workers)
    PAGE.write_text(page(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
