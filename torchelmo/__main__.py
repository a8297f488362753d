"""`python -m torchelmo` and `torchrun -m torchelmo`: the command line."""

from torchelmo.cli import main

if __name__ == "__main__":
    main()
