"""The harness that proves that a call site moved onto gen_engine.py still gives what it gave.

    __main__, pytest_plugin              the doors: lists of commands and fixtures whose code stands in the rooms
    prove/  bench/  report/  rollout/    the judge, judged; speed; what was found, told; pictures of traces
    judge/                               two recordings of one case: what differs, why, whether that passes
    record/                              what code does, seen from outside; hook/ goes into its processes
    golden, verdict, tasks, vendor,
    real_model                           the ground: files, values, small worlds, copies of the engine, a real model

A room looks down only: at rooms below it here, never up, never in a circle. Beside them stand the material, callsites/,
demo, which also asks the judge, and companions/, which know gen_engine alone. tests/test_rooms.py holds the table.
"""
