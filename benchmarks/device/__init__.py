"""The public surface on one device: every documented command, and a matrix of doors, models, drafters and controls."""
