"""python -m draftproof"""

from draftproof.commands.cli import main

main()
