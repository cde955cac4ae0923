"""Predicted speeds beside what others measured and published.

rows          a line of speeds.csv, parsed
stated        what rows and pages say in words, as columns
models        ids that no profile ships, by a shipped model of the same shape; kinds of model and generations of GPU
samples       lengths of samples that have a name, and what is set for them
newest        the release of a row that names none but a day
settings      the deployment of a row: model, GPU, settings, engine
chats         lengths of ShareGPT's prompts and answers
playing       the load of a row and its engine's rules, as kvplan.estimate.speed.queueing plays them
predictions   what kvplan's planner answers to it
copies        rows whose figures are another GPU's to the digit
hindered      rows that other rows of their source contradict
intervals     intervals from those errors, held out by source
causes        why kinds of servers are far off, as far as known, and how old their engines are
scores        errors, one per figure, and their summaries by group
"""
