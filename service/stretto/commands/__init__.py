"""The commands of `stretto`: one module each, and what they share."""
