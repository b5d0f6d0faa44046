"""Options that commands on models share."""

import argparse

from normgrowth.cli.source import add_attention, add_model_type, positive


def add_passes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-tokens", type=positive, default=2048, metavar="N", help="in a pass (2048)")
    add_attention(parser)
    add_model_type(parser)
    parser.add_argument("--dtype", help="float64, float32 (default), bfloat16 or float16")
    add_out(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", metavar="DIR", help="output folder for records (parquet) and figures")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )
