"""`xlm build-vocab`, from a checkout: python build_vocab.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("build-vocab")
