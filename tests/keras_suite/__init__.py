"""Run Keras' own tests against mp_core: `make keras-tests KERAS=FOLDER`.

FOLDER is a checkout of Keras or its unpacked source archive. Its test files run unchanged. Their imports of Keras find
mp_core's objects of the same names (`modules.py`), and a few functions that only tests need (`stand_ins.py`). A failure
is either covered by a row of `differences.py`, which has the reason, or a defect: then the command fails.
"""
