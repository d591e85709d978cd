"""``python -m bench.sailor [FOLDER]``: the table of `bench.sailor.table`."""

from bench.command import start
from bench.sailor import table

if __name__ == "__main__":
    start(table.add_arguments, table.solve_command, table.__doc__)
