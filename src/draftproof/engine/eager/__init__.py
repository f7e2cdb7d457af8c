"""The step on any model and by any rule, one operation after another."""
