"""What tools/check_web.py asks the page of `kvplan web`, and how it writes down what it found.

questions   40 questions as links of the page and as words of the command; the pictures to take
page        the results as a page of the documentation

ask.mjs asks the planner under Pyodide in Node.js, browser.mjs the page in a browser.
"""
