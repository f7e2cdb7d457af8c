"""`draftproof chat`: a conversation with a model in the terminal, or in a pipe."""

from draftproof.commands.chat.command import chat

__all__ = ["chat"]
