"""The requests that trials serve: how many, how long, when they arrive. The same seed gives the same requests.

requests   WorkloadSpec, and the requests made from it; times that are drawn
lengths    distributions of prompt and output lengths
files      a request file looked at, and its requests one after the other
part       which part of a file is used: --from, --to, --sample, --speed
records    records of a file as a stream: CSV, JSON lines, JSON lists
columns    what columns are called, by format
rows       from a record to requests, those of a whole conversation too
texts      texts as numbers of tokens, and what they begin with in common
times      units of arrival times
shape      lengths, rates and repeated prompts of a whole file, for plans
"""
