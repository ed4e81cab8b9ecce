"""Our policies compared with d3rlpy's: the same data, hyper-parameters, steps, machine and evaluation.

python peers/compare.py scores    trains and rolls out with both libraries; adds to build/peers/scores.json
python peers/compare.py speed     updates per second of both; writes build/peers/speed.json
python peers/compare.py alike     the same weights and batches through both; writes build/peers/alike.json
python peers/compare.py report    writes the page from these files

It runs in the environment of peers/requirements.txt, which holds both libraries.
"""

import sys

import tyro
from alike import Alike, measure_alike
from measure import Scores, measure
from page import Report, report
from speed import Speed, measure_speed

from trajstitch.errors import InputError


def main() -> None:
    try:
        do()
    except InputError as error:
        sys.exit(f"error: {error}")


def do() -> None:
    verbs = {"scores": Scores, "speed": Speed, "alike": Alike, "report": Report}
    asked = tyro.extras.subcommand_cli_from_dict(verbs, description=__doc__)
    if isinstance(asked, Scores):
        sys.exit(not measure(asked))
    elif isinstance(asked, Speed):
        measure_speed(asked)
    elif isinstance(asked, Alike):
        measure_alike(asked)
    else:
        report(asked)


if __name__ == "__main__":
    main()
