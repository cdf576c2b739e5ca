"""Keeping repositories small and whole: expire, collect, rewrite, compact, verify, merge, mirror.

Each verb is a plan first (a frozen value that prints itself and is what a dry run returns), then carried out. Nothing
here asks for the generation of a repository: ledgers and formats say what they can.
"""
