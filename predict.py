"""`xlm predict`, from a checkout: python predict.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("predict")
