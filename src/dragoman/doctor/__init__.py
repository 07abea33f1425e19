"""The data doctor: what is wrong with a corpus, seen before a day is spent on training with it.

characters  what kind each character is, and sentences as arrays of kinds      alignment   do the sides go together
survey      one reading of a corpus: a few numbers per pair, no text           leaks       nearly the same sentence
findings    numbers to findings, each with its lines                           settings    which words for train.py
examine     all of it, and the report                                          page        the report as a web page
"""
