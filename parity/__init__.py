"""The harness that proves that a call site moved onto gen_engine.py still gives what it gave.

    cli/                          the command line (__main__ and pytest_plugin are its doors)
    report/  bench/  rollout/     what was found, for people and programs; speed; traces of rollouts
    diff/                         any two paths to one model's answers
    judge/                        two recordings of one case: what differs, why, whether that passes
    record/                       what code does, seen from outside; hook/ goes into its processes
    goldens/ environment/ models/ files and values; libraries and copies of the engine; small worlds

A room imports rooms below it only; tests/test_rooms.py holds the table. companions/ know gen_engine alone. proof/ is
what proves all this; it is in a clone only.
"""
