"""`xlm train`, from a checkout: python train.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("train")
