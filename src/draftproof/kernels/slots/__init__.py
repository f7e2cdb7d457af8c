"""For engines that keep their requests in slots: what a step needs of them, what came of it, and drafts for them.

PyTorch takes dozens of launches for each. The tensors are the caller's.
"""
