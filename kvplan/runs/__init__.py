"""Run directories: what a sweep leaves on disk, and the answers that its rows hold.

A sweep writes one row per trial; reports, calibration and a resumed sweep read them. Nothing here runs a trial.

    columns/        Row: every column's name, type, unit, group and description
    rows            questions about a row: cells by name, settings, whether it was measured
    setting_text    settings and loads in words and cells: what a line or a table shows of them
    trials          TrialSettings, Load and Trial: what a row was measured for, with its id
    statuses        how a trial can end
    directory       file names, the types of what they hold, and strict reading
    files, store    writing: appended rows that survive a crash, files replaced as a whole
    reader          tolerant reading, for reports of damaged or unfinished directories
    outliers        runs that were noisy or far from their siblings, and what medians leave out
    points, boundaries, violations   where an axis starts, holds and fails, and what contradicts that
    slo_result      the largest load within a service level
    best_settings   the best setting for each goal
    deploy          the commands that deploy a setting
    summary         summary.json: all of these answers
"""
