"""normgrowth trace: a series of checkpoints becomes records."""

import argparse
from typing import Any

from normgrowth.cli.source import add_engine, add_source, integers, real, size, source_of

EXAMPLES = """examples:
  normgrowth trace runs/gpt/checkpoints -o traces/gpt
  normgrowth trace 'runs/gpt/step_*.safetensors' --include all
  normgrowth trace 'hf://EleutherAI/pythia-70m@step*' -o traces/pythia --tokens-per-step 2097152
  normgrowth trace 't5/model.ckpt-*' --include encoder --lags 1,10,100 -o traces/t5
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="norms, steps, directions and growth of a series of checkpoints",
        description="Read a series of checkpoints and write norm, step size, cosine, angle, alignment\n"
        "and the growth budget of every tensor, layer, role and the model. Run the same\n"
        "command again to resume, or to add new checkpoints. Steps measured before stay\n"
        "when their checkpoints are gone.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(parser)
    parser.add_argument(
        "-o", "--out", metavar="DIR", help="output folder; run the same command again to resume"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )
    parser.add_argument(
        "--lags", type=integers, default=(), metavar="N,N", help="cosines to checkpoints further back"
    )
    parser.add_argument("--no-first", action="store_true", help="do not compare with the first checkpoint")
    parser.add_argument("--tokens-per-step", type=real, metavar="N", help="adds an axis in tokens")
    parser.add_argument("--run", dest="run_name", metavar="NAME", help="what to call this run in the records")
    parser.add_argument("--no-lint", action="store_true", help="skip the integrity checks")
    add_engine(parser, "threads, or workers of Ray")
    parser.add_argument(
        "--memory",
        type=size,
        default="1G",
        metavar="BYTES",
        help="of checkpoints that are read over a network, held at a time (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the trace as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import show_result
    from normgrowth.engine.select import chosen
    from normgrowth.report.terminal.console import Progress
    from normgrowth.trace import trace

    with Progress() as progress, chosen(arguments.engine, arguments.address, arguments.workers) as engine:
        result = trace(
            source_of(arguments),
            arguments.out,
            overwrite=arguments.overwrite,
            include=arguments.include,
            select=arguments.select,
            exclude=arguments.exclude,
            lags=arguments.lags,
            first=not arguments.no_first,
            tokens_per_step=arguments.tokens_per_step,
            run=arguments.run_name,
            lint=not arguments.no_lint,
            endpoint=arguments.endpoint,
            workers=arguments.workers,
            engine=engine,
            memory=arguments.memory,
            progress=progress,
        )
    show_result(arguments, result, remarks=False)  # they went to stderr as warnings
    if arguments.out and not arguments.json:
        print(f"records: {arguments.out}")
    return 0
