"""`xlm evaluate`, from a checkout: python evaluate.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("evaluate")
