"""The engine's steps, one after the other.

step_loop          one step ahead of the tokens where that is possible
step_runner        what it needs of a runner; who wants to know what each step does and where its time goes
output_processor   tokens to their sequences: appended, checked for an end, reported
"""
