"""What an algorithm's law is, and how good any algorithm could be."""
