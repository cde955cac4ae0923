"""What the rows of a run answer: where it starts and fails, the best settings, and what medians leave out.

outliers        runs that were noisy or far from their siblings, and what medians leave out
points          runs along an axis, one point for each of its values
boundaries      where an axis starts, holds and fails
slo_result      the largest load within a service level
drift           whether requests were alike from the beginning to the end
stand_in        what speeds on a GPU say of vLLM
beside          predictions beside measurements, in words
best_settings   the best setting for each goal; what a pool holds, what a load reached of it, and what held it back
deploy          the commands that deploy a setting
summary         summary.json: all of these answers; what contradicts that; what drafts gained, measured and predicted
"""
