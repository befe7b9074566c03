"""`python -m harch`: the same as the `harch` command."""

from harch.cli.main import main

if __name__ == "__main__":
    main()
