"""`python -m attncc`: the command line."""

from attncc.cli.main import main

if __name__ == "__main__":
    main()
