"""`trajstitch sets`."""

from dataclasses import dataclass

from rich.table import Table

from trajstitch.benchmark import sets
from trajstitch.cli.output import print_json, stdout
from trajstitch.formats import minari


@dataclass(frozen=True)
class Command:
    """List the built-in benchmark sets and the data sets of the local Minari store.

    A built-in set is collected by `trajstitch collect SET`, or when a command uses it for the first time.
    """

    json: bool = False
    """Print JSON instead of a table."""

    def execute(self) -> None:
        stored = minari.local_sets()
        built_in = [sets.built_in(name) for name in sets.NAMES]
        if self.json:
            print_json(
                {
                    "built_in": [
                        {
                            "name": item.name,
                            "transitions": item.transitions,
                            "recipe": item.recipe,
                            "minari_id": item.minari_id,
                            "collected": stored.get(item.minari_id, {}).get("steps"),
                        }
                        for item in built_in
                    ],
                    "minari": stored,
                }
            )
            return
        out = stdout()
        table = Table(title="Built-in sets", title_justify="left", box=None, pad_edge=False, header_style="bold")
        table.add_column("set", no_wrap=True)
        table.add_column("full size", justify="right")
        table.add_column("collected", justify="right")
        table.add_column("what is in it", overflow="fold")
        for item in built_in:
            here = stored.get(item.minari_id)
            table.add_row(item.name, f"{item.transitions:,}", f"{here['steps']:,}" if here else "-", item.recipe)
        out.print(table)
        others = {name: facts for name, facts in stored.items() if name not in {item.minari_id for item in built_in}}
        if others:
            table = Table(title="\nLocal Minari store", title_justify="left", box=None, pad_edge=False)
            table.add_column("URI", no_wrap=True)
            table.add_column("episodes", justify="right")
            table.add_column("transitions", justify="right")
            for name, facts in others.items():
                table.add_row(f"minari:{name}", f"{facts['episodes']:,}", f"{facts['steps']:,}")
            out.print(table)
