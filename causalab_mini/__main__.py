"""`python -m causalab_mini` is the program."""

from causalab_mini.cli.app import main

main()
