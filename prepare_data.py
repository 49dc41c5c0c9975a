"""`xlm prepare`, from a checkout: python prepare_data.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("prepare")
