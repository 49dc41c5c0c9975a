"""`xlm finetune`, from a checkout: python finetune.py --help."""

from xlm.cli.main import main

if __name__ == "__main__":
    main("finetune")
