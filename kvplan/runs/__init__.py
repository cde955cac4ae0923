"""Run directories: what a sweep leaves on disk, and the answers that its rows hold.

A sweep writes one row per trial; reports, calibration and a resumed sweep read them. Nothing here runs a trial.

    columns/        Row: every column's name, type, unit, group and description
    rows            questions about a row: cells by name, settings, whether it was measured
    setting_text    settings and loads in words and cells: what a line or a table shows of them
    trials          TrialSettings, Load and Trial: what a row was measured for, with its id
    request_lines   what is kept of each request
    statuses        how a trial can end
    shape           whether a JSON value is what a type declares
    directory       file names, the types of what they hold, and strict reading
    answers/        what the rows answer: boundaries, the largest load, the best settings, outliers; the summary
    storage/        writing that survives a crash, and tolerant reading
"""
