"""`python -m trajstitch` is `trajstitch`."""

from trajstitch.cli import main

main()
