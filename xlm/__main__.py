"""The command `xlm`, where it is not installed: python -m xlm."""

from xlm.cli.main import main

main()
