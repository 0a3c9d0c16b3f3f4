"""What a run, a sweep, a pack and a sample come to, on a terminal and as a page.

    plan ──figures──► remarks ─┐
    samples, packs ──views─────┼──► values: rows, lines, tokens, turns, pictures ──to_terminal──► rich
    jobs of a sweep ───────────┘                                                 └─to_html──────► one file

`figures.py` counts and `remarks.py` judges. `terminal_summary.py` and `page.py` show a run, `sweep_page.py` a sweep,
and `views/screens.py` a pack and a sample. What is shown in both places is a value: a table of `pages/html.py`, or a
block of `views/text.py`. One more rule is a function in `data_rules.py` or `remarks.py`, and a line of `RULES` there.
"""
