"""python -m draftproof"""

from draftproof.cli import main

main()
