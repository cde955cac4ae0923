"""What the page in a browser asks: questions and answers as JSON, by the same functions as the commands.

bridge          the one entrance: a question as JSON text, its answer as JSON text; estimate, plan, explain and what is
                known by name, each with the command's document
command_lines   the lines to paste: kvplan's own, and vLLM's
changes         the same deployment with one thing changed, and what that is worth
estimate_view   an estimate as the page shows it: sentences, a bar, tables
other_views     a plan; a start-up log; rows of a sweep, measured beside predicted
wording         numbers as text

The page itself, which has no formula, lies in kvplan/site/page.
"""
